"""A Dataset as tidy tables: a row a place, a column a field, one table for each set of dimensions."""

from typing import TYPE_CHECKING, Any

from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import pandas
    import xarray

SCALAR_TABLE = "scalar"
"""The name of the table of what has no dimension."""
MAX_ROWS = 1_000_000
"""Rows of a table that is made unasked."""


def table(dataset: "xarray.Dataset", largest: int = MAX_ROWS) -> "dict[str, pandas.DataFrame]":
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
    skipped = {_table_name(dims): f"{size:,} rows" for dims, size in sizes.items() if size > largest}
    if skipped and len(skipped) == len(by_dims):
        raise RheoscopeError(
            f"every table has more than {largest:,} rows; type rs.table(dataset, largest={max(sizes.values())})"
        )
    attributes = {"provenance": dict(dataset.attrs), "left_out": skipped}
    return {
        _table_name(dims): _fields_frame(dataset, dims, names, attributes)
        for dims, names in by_dims.items()
        if sizes[dims] <= largest
    }


def csv_text(frame: "pandas.DataFrame") -> str:
    """A table as CSV, its places in the first columns; nothing stands where there is no number.

    >>> import pandas as pd
    >>> csv_text(pd.DataFrame({"kappa": [0.5, None]}, pd.Index(["L0", "L1"], name="step")))
    'step,kappa\\nL0,0.5\\nL1,\\n'
    """
    return frame.to_csv(index=frame.index.names != [None], lineterminator="\n")


def _table_name(dims: tuple[str, ...]) -> str:
    return " ".join(dims) or SCALAR_TABLE


def _fields_frame(
    dataset: "xarray.Dataset", dims: tuple[str, ...], names: list[str], attributes: dict[str, Any]
) -> "pandas.DataFrame":
    """Fields of the same dimensions side by side."""
    import pandas as pd

    sizes = {dim: dataset.sizes[dim] for dim in dims}
    label_columns = [
        str(name)
        for name, coordinate in dataset.coords.items()
        if name not in dims and coordinate.dims and set(coordinate.dims) <= {*dims}
    ]
    columns = {
        name: dataset[name].variable.set_dims(sizes).transpose(*dims).values.ravel()
        for name in (*label_columns, *names)
    }
    frame = pd.DataFrame(columns, _dims_index(dataset, dims))
    frame.attrs = _column_attributes(dataset, names) | attributes
    return frame


def _column_attributes(dataset: "xarray.Dataset", names: list[str]) -> dict[str, dict[str, str]]:
    """What the columns are, as far as there is something to say."""
    attribute_names = {"definitions": "definition", "units": "unit", "nulls": "null"}
    attributes = {
        attribute_name: {name: str(dataset[name].attrs.get(key, "")) for name in names}
        for attribute_name, key in attribute_names.items()
    }
    attributes["depends_on"] = {
        name: " and ".join(
            str(dataset[name].attrs[dependence]).removeprefix("depends on ")
            for dependence in ("basis", "gauge")
            if dependence in dataset[name].attrs
        )
        for name in names
    }
    return {
        attribute_name: {name: text for name, text in texts.items() if text}
        for attribute_name, texts in attributes.items()
    }


def _dims_index(dataset: "xarray.Dataset", dims: tuple[str, ...]) -> "pandas.Index":
    """A level for each dimension, in its own order (layer 10 after layer 9); places without a name are counted from 0."""
    import numpy as np
    import pandas as pd

    if not dims:
        return pd.RangeIndex(1)
    indexes = [pd.Index(dataset[dim].values, name=dim) for dim in dims]
    if len(indexes) == 1:
        return indexes[0]
    levels = [index.unique() for index in indexes]
    codes = [level.get_indexer(index) for level, index in zip(levels, indexes, strict=True)]
    return pd.MultiIndex(levels, [grid.ravel() for grid in np.meshgrid(*codes, indexing="ij")], names=dims)
