"""A Dataset as tidy tables: one table for each set of dimensions, with fields as columns."""

from typing import TYPE_CHECKING, Any

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import pandas
    import xarray

SCALAR_TABLE = "scalar"
"""The name of the table of fields without dimensions."""
MAX_ROWS = 1_000_000
"""The default limit on the rows of a table."""


def table(dataset: "xarray.Dataset", largest: int = MAX_ROWS) -> "dict[str, pandas.DataFrame]":
    """The result of an analysis as pandas tables, one for each set of dimensions: `rs.table(rs.energy(trace))["layer head"]`.

    **Returns** a dictionary from dimensions ("layer head", "step token", "scalar") to a DataFrame. The index has a level for each
    dimension. The columns are the labels of the coordinates, such as token texts, and the fields. The `attrs` of a table are
    `definitions`, `units`, `nulls` (the column with the null), `depends_on` (the basis of E, the coordinates of a head) and
    `provenance` (analysis, settings, text, model, weights).

    **Laws** Every number appears once. Dimensions that no field combines are not multiplied, unlike in
    `dataset.to_dataframe()`. A table of more than `largest` rows is left out; `left_out` in the attrs of the others names it.

    **See also** `rs.plot` draws the same numbers, `--csv DIR` writes these tables.

    >>> import rheoscope as rs
    >>> path = rs.trajectory(rs.load().trace("The keys to the cabinet are"))
    >>> list(rs.table(path)["layer head"])
    ['head_speed', 'head_cosine']
    """
    import xarray as xr

    if not isinstance(dataset, xr.Dataset):
        raise RheoscopeError(
            Message("rs.table expects the Dataset of an analysis, got {received}", received=type(dataset).__name__),
            Advice("rs.table(rs.trajectory(trace))"),
        )
    groups: dict[frozenset[str], list[str]] = {}
    for name, field in dataset.data_vars.items():
        groups.setdefault(frozenset(map(str, field.dims)), []).append(str(name))
    by_dims = {tuple(map(str, dataset[names[0]].dims)): names for names in groups.values()}
    sizes = {dims: dataset[names[0]].size for dims, names in by_dims.items()}
    skipped = {_table_name(dims): f"{size:,} rows" for dims, size in sizes.items() if size > largest}
    if skipped and len(skipped) == len(by_dims):
        raise RheoscopeError(
            Message("every table has more than {n:,} rows", n=largest),
            Advice(f"rs.table(dataset, largest={max(sizes.values())})"),
        )
    attributes = {"provenance": dict(dataset.attrs), "left_out": skipped}
    return {
        _table_name(dims): _fields_frame(dataset, dims, names, attributes)
        for dims, names in by_dims.items()
        if sizes[dims] <= largest
    }


def csv_text(frame: "pandas.DataFrame") -> str:
    """A table as CSV with the index in the first columns. Missing numbers are empty.

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
    """A table of the fields with these dimensions."""
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
    """The definitions, units, nulls and dependences of the columns, without empty ones."""
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
    """An index with a level for each dimension, in the order of the Dataset. Unnamed positions count from 0."""
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
