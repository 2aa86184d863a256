"""A Dataset as tidy tables: a row a place, a column a field, one table for each set of dimensions."""

from typing import TYPE_CHECKING, Any

from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import pandas
    import xarray

SCALAR = "scalar"
"""The name of the table of what has no dimension."""
LARGEST = 1_000_000
"""Rows of a table that is made unasked."""


def table(dataset: "xarray.Dataset", largest: int = LARGEST) -> "dict[str, pandas.DataFrame]":
    """What an analysis found as pandas tables, one for each set of dimensions: `rs.table(rs.energy(trace))["layer head"]`.

    **Gives** a dictionary from dimensions ("layer head", "step token", "scalar") to a DataFrame: its index has a level for each
    dimension, its columns are the fields, after words that belong to the places (the texts of tokens). The `attrs` of a table
    say what its columns are: `definitions`, `units`, `nulls` (the column that holds what chance would give), `depends_on` (the
    basis of E, the coordinates of a head); `provenance` says where they come from: analysis, settings, text, model, weights.

    **Laws** the tables hold every number once, beside its own place: dimensions that no field has together are not multiplied,
    as one table of everything (`dataset.to_dataframe()`) would. A table of more than `largest` rows is not made: `left_out` in
    the attrs of the others names it.

    **Relation** `plot` draws the same numbers; `--csv DIR` writes these tables.

    >>> import rheoscope as rs
    >>> path = rs.trajectory(rs.load().trace("The keys to the cabinet are"))
    >>> list(rs.table(path)["layer head"])
    ['head_speed', 'head_cosine']
    """
    import xarray as xr

    if not isinstance(dataset, xr.Dataset):
        raise RheoscopeError(
            f"tables are made of the Dataset of an analysis, got {type(dataset).__name__}; type rs.table(rs.transport(trace))"
        )
    groups: dict[frozenset[str], list[str]] = {}
    for name, field in dataset.data_vars.items():
        groups.setdefault(frozenset(map(str, field.dims)), []).append(str(name))
    by_dims = {tuple(map(str, dataset[names[0]].dims)): names for names in groups.values()}
    sizes = {dims: dataset[names[0]].size for dims, names in by_dims.items()}
    left_out = {_key(dims): f"{size:,} rows" for dims, size in sizes.items() if size > largest}
    if left_out and len(left_out) == len(by_dims):
        raise RheoscopeError(
            f"every table has more than {largest:,} rows; type rs.table(dataset, largest={max(sizes.values())})"
        )
    told = {"provenance": dict(dataset.attrs), "left_out": left_out}
    return {_key(dims): _frame(dataset, dims, names, told) for dims, names in by_dims.items() if sizes[dims] <= largest}


def csv_text(frame: "pandas.DataFrame") -> str:
    """A table as CSV, its places in the first columns; nothing stands where there is no number.

    >>> import pandas as pd
    >>> csv_text(pd.DataFrame({"kappa": [0.5, None]}, pd.Index(["L0", "L1"], name="step")))
    'step,kappa\\nL0,0.5\\nL1,\\n'
    """
    return frame.to_csv(index=frame.index.names != [None], lineterminator="\n")


def _key(dims: tuple[str, ...]) -> str:
    return " ".join(dims) or SCALAR


def _frame(
    dataset: "xarray.Dataset", dims: tuple[str, ...], names: list[str], told: dict[str, Any]
) -> "pandas.DataFrame":
    """Fields of the same dimensions side by side."""
    import pandas as pd

    sizes = {dim: dataset.sizes[dim] for dim in dims}
    words = [
        str(name) for name, one in dataset.coords.items() if name not in dims and one.dims and set(one.dims) <= {*dims}
    ]
    columns = {
        name: dataset[name].variable.set_dims(sizes).transpose(*dims).values.ravel() for name in (*words, *names)
    }
    frame = pd.DataFrame(columns, _index(dataset, dims))
    frame.attrs = _about(dataset, names) | told
    return frame


def _about(dataset: "xarray.Dataset", names: list[str]) -> dict[str, dict[str, str]]:
    """What the columns are, as far as there is something to say."""
    kinds = {"definitions": "definition", "units": "unit", "nulls": "null"}
    told = {kind: {name: str(dataset[name].attrs.get(key, "")) for name in names} for kind, key in kinds.items()}
    told["depends_on"] = {
        name: " and ".join(
            str(dataset[name].attrs[mark]).removeprefix("depends on ")
            for mark in ("basis", "gauge")
            if mark in dataset[name].attrs
        )
        for name in names
    }
    return {kind: {name: text for name, text in of.items() if text} for kind, of in told.items()}


def _index(dataset: "xarray.Dataset", dims: tuple[str, ...]) -> "pandas.Index":
    """A level for each dimension, in its own order (layer 10 after layer 9); places without a name are counted from 0."""
    import numpy as np
    import pandas as pd

    if not dims:
        return pd.RangeIndex(1)
    places = [pd.Index(dataset[dim].values, name=dim) for dim in dims]
    if len(places) == 1:
        return places[0]
    levels = [place.unique() for place in places]
    codes = [level.get_indexer(place) for level, place in zip(levels, places, strict=True)]
    return pd.MultiIndex(levels, [grid.ravel() for grid in np.meshgrid(*codes, indexing="ij")], names=dims)
