"""Tables of the fields of any result, for analyses without tables of their own."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.catalogue import analysis_by_name
from rheoscope.messages.message import Message, Verbatim, join
from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.space.results import Results

if TYPE_CHECKING:
    import xarray

MAX_COLUMNS = 8
"""The number of fields in one table."""
OVER_TEXTS_SUFFIXES = ("_low", "_high", "_z", "_q_value")
MAX_ROWS = 64
"""The number of rows of a table. The files have all rows."""


def blocks(results: Results, key: str) -> list[Block]:
    """A table for every axis and every pair of axes (medians over heads). Other fields appear as lines."""
    dataset = results.datasets[key]
    names = _main_fields(dataset)
    axis_tables = [table for axis in map(str, dataset.dims) for table in _axis_tables(key, dataset, axis, names)]
    cross_tables = [_cross_table(key, dataset, name) for name in names if _fits_cross_table(dataset[name])]
    return [
        *axis_tables,
        *cross_tables,
        *_other_lines(key, dataset, [name for name in names if not _fits_table(dataset[name])]),
    ]


def brief_blocks(results: Results, key: str) -> list[Block]:
    """The fields without an axis, and those by measure."""
    dataset = results.datasets[key]
    names = _main_fields(dataset)
    scalars = [name for name in names if not dataset[name].dims]
    return [*_axis_tables(key, dataset, "measure", names), *_other_lines(key, dataset, scalars)]


def _main_fields(dataset: "xarray.Dataset") -> list[str]:
    """The fields that have a column or a line of their own."""
    hidden = _inline_nulls(dataset) | _null_sds(dataset) | _empty_intervals(dataset) | _over_texts_fields(dataset)
    return [name for name in map(str, dataset.data_vars) if name not in hidden]


def _axis_tables(key: str, dataset: "xarray.Dataset", axis: str, names: list[str]) -> list[Block]:
    """The fields along an axis, a few in each table."""
    fields_along = [name for name in names if _runs_along(dataset[name], axis)]
    return [
        _axis_table(key, dataset, axis, fields_along[start : start + MAX_COLUMNS])
        for start in range(0, len(fields_along), MAX_COLUMNS)
    ]


def _other_lines(key: str, dataset: "xarray.Dataset", names: list[str]) -> list[Block]:
    lines = [_field_line(dataset, name) for name in names]
    return [Lines(Message("{analysis}, other numbers", analysis=key), lines)] if lines else []


def _over_texts_fields(dataset: "xarray.Dataset") -> set[str]:
    """The intervals, z and q-values that `over_texts` adds to a field. Only the files have them."""
    if "intervals" not in dataset.attrs:
        return set()
    declared = analysis_by_name(dataset.attrs["analysis"]).fields
    names = [str(name) for name in dataset.data_vars if name not in declared]
    return {
        name
        for name in names
        for suffix in OVER_TEXTS_SUFFIXES
        if name.endswith(suffix) and name.removesuffix(suffix) in declared
    }


def _inline_nulls(dataset: "xarray.Dataset") -> set[str]:
    """Nulls that are shown as small numbers next to their field."""
    fields = [field for field in dataset.data_vars.values() if _fits_table(field)]
    nulls = {str(field.attrs.get("null", "")): field.dims for field in fields}
    return {null for null, dims in nulls.items() if null in dataset and dataset[null].dims == dims}


def _null_sds(dataset: "xarray.Dataset") -> set[str]:
    """Standard deviations of nulls. Only the files have them."""
    return {str(field.attrs.get("null_sd", "")) for field in dataset.data_vars.values()}


def _empty_intervals(dataset: "xarray.Dataset") -> set[str]:
    """Ends of intervals without a finite value."""
    interval_fields = [str(name) for name in dataset.data_vars if str(name).endswith(("_low", "_high"))]
    return {
        name
        for name in interval_fields
        if dataset[name].dtype.kind == "f" and not np.isfinite(dataset[name].values).any()
    }


def _fits_table(field: "xarray.DataArray") -> bool:
    return any(_runs_along(field, str(axis)) for axis in field.dims) or _fits_cross_table(field)


def _fits_cross_table(field: "xarray.DataArray") -> bool:
    """Whether it has two axes besides heads, both short enough for a table."""
    sizes = sorted(field.sizes[axis] for axis in _table_axes(field))
    is_printable = field.dtype.kind == "f" and not {"token", "draw"} & set(field.dims)
    return is_printable and len(sizes) == 2 and sizes[0] <= MAX_COLUMNS and sizes[1] <= MAX_ROWS


def _table_axes(field: "xarray.DataArray") -> list[str]:
    """All axes but heads, the longest first."""
    return sorted((str(axis) for axis in field.dims if axis != "head"), key=lambda axis: -field.sizes[axis])


def _cross_table(key: str, dataset: "xarray.Dataset", name: str) -> Table:
    """A table of one field, with its longer axis as rows."""
    field = dataset[name]
    row_axis, column_axis = _table_axes(field)
    null = str(field.attrs.get("null", ""))
    values, null_values = _median_over_heads(field, row_axis, column_axis), None
    if null in dataset and dataset[null].dims == field.dims:
        null_values = _median_over_heads(dataset[null], row_axis, column_axis)
    definition = str(field.attrs.get("definition", ""))
    header = [Cell(row_axis), *(Cell(f"{column_axis} {label}", definition) for label in dataset[column_axis].values)]
    cell_rows = [
        [Cell(str(label)), *(_cell_with_null(values, null_values, row_index, j) for j in range(values.shape[1]))]
        for row_index, label in enumerate(dataset[row_axis].values)
    ]
    axes = {"analysis": key, "field": name, "rows": row_axis, "columns": column_axis}
    heading = (
        Message("{analysis}: {field} by {rows} and {columns}, median over heads", **axes)
        if "head" in field.dims
        else Message("{analysis}: {field} by {rows} and {columns}", **axes)
    )
    caption = Message("small: mean of the null") if null_values is not None else ""
    return Table(heading, header, cell_rows, small_caption=caption)


def _median_over_heads(field: "xarray.DataArray", row_axis: str, column_axis: str) -> np.ndarray:
    field = field.median("head") if "head" in field.dims else field
    return np.asarray(field.transpose(row_axis, column_axis).values, dtype=float)


def _cell_with_null(values: np.ndarray, null: np.ndarray | None, row: int, column: int) -> Cell:
    null_text = "none" if null is None else format_number(float(null[row, column]))
    return Cell(format_number(float(values[row, column])), small_text="" if null_text == "none" else null_text)


def _runs_along(field: "xarray.DataArray", axis: str) -> bool:
    """Whether it has this axis only, besides heads. Draws are no axis of a table."""
    return axis != "draw" and (field.dims == (axis,) or (field.dims == (axis, "head") and field.dtype.kind in "fiub"))


def _axis_table(key: str, dataset: "xarray.Dataset", axis: str, names: list[str]) -> Table:
    header = [Cell(axis), *(Cell(name, str(dataset[name].attrs.get("definition", ""))) for name in names)]
    labels = [str(label) for label in dataset[axis].values][:MAX_ROWS]
    rows = [[Cell(label), *(_field_cell(dataset, name, index) for name in names)] for index, label in enumerate(labels)]
    heading = (
        Message("{analysis} by {axis}, median over heads", analysis=key, axis=axis)
        if any("head" in dataset[name].dims for name in names)
        else Message("{analysis} by {axis}", analysis=key, axis=axis)
    )
    total = dataset.sizes[axis]
    note = Message("the first {n} of {total} rows; the files have all", n=MAX_ROWS, total=total)
    return Table(heading, header, rows, note=note if total > MAX_ROWS else "")


def _field_cell(dataset: "xarray.Dataset", name: str, index: int) -> Cell:
    field = dataset[name]
    null = str(field.attrs.get("null", ""))
    null_text = (
        format_number(_median_at(dataset[null].values, index))
        if null in dataset and dataset[null].dims == field.dims
        else ""
    )
    value = field.values[index]
    is_printed_whole = field.dtype.kind in "UO" or (field.dtype.kind in "iu" and field.ndim == 1)  # 1 and not 1.00
    text = str(value) if is_printed_whole else format_number(_median_at(field.values, index))
    return Cell(text, small_text="" if null_text == "none" else null_text)


def _median_at(values: np.ndarray, index: int) -> float:
    row = np.asarray(values[index], dtype=float)
    return float(np.median(row)) if row.ndim else float(row)


def _field_line(dataset: "xarray.Dataset", name: str) -> Message:
    field = dataset[name]
    if not field.dims:
        return _scalar_line(dataset, name)
    axes_text = ", ".join(f"{axis} {size}" for axis, size in zip(field.dims, field.shape, strict=True))
    if field.dtype.kind not in "fiub" or not np.isfinite(np.asarray(field.values, dtype=float)).any():
        return Message("{field} ({axes})", field=name, axes=axes_text)
    values = np.asarray(field.values, dtype=float)
    low, middle, high = (format_number(float(reduce(values))) for reduce in (np.nanmin, np.nanmedian, np.nanmax))
    return Message(
        "{field} ({axes}): from {low} to {high}, median {middle}",
        field=name,
        axes=axes_text,
        low=low,
        high=high,
        middle=_with_unit(middle, field),
    )


def _scalar_line(dataset: "xarray.Dataset", name: str) -> Message:
    value = dataset[name].values.item()
    number = format_number(float(value)) if isinstance(value, int | float) else Verbatim(value)
    text = _with_unit(number, dataset[name])
    if f"{name}_low" not in dataset or f"{name}_high" not in dataset:
        return Message("{field}: {value}", field=name, value=text)
    low, high = (format_number(float(dataset[f"{name}_{end}"])) for end in ("low", "high"))
    return Message("{field}: {value} ({low} to {high})", field=name, value=text, low=low, high=high)


def _with_unit(number: str, field: "xarray.DataArray") -> str:
    unit = field.attrs.get("unit")
    return join(" ", [number, str(unit)]) if unit else number
