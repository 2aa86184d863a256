"""What any analysis found, told from its fields alone: for those that nobody wrote tables for."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.catalogue import analysis
from rheoscope.messages.numbers import short
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.space.results import Answers

if TYPE_CHECKING:
    import xarray

WIDEST = 8
"""Numbers side by side in one table."""
OF_TEXTS = ("_low", "_high", "_z", "_q_value")
LONGEST = 64
"""Rows of a table; the files have all."""


def blocks(answers: Answers, key: str) -> list[Block]:
    """A table for every axis that numbers run along and for every two (medians over heads), single numbers as lines, the rest by name."""
    dataset = answers.found[key]
    told = _told(dataset)
    along = [table for axis in map(str, dataset.dims) for table in _tables(key, dataset, axis, told)]
    crossed = [_crossed(key, dataset, name) for name in told if _crosses(dataset[name])]
    return [*along, *crossed, *_lines(key, dataset, [name for name in told if not _in_a_table(dataset[name])])]


def brief(answers: Answers, key: str) -> list[Block]:
    """The numbers that stand for all heads and all texts, single ones as lines."""
    dataset = answers.found[key]
    told = _told(dataset)
    single = [name for name in told if not dataset[name].dims]
    return [*_tables(key, dataset, "measure", told), *_lines(key, dataset, single)]


def _told(dataset: "xarray.Dataset") -> list[str]:
    """The fields that are told each by itself."""
    hidden = _beside(dataset) | _spreads(dataset) | _empty_ends(dataset) | _of_texts(dataset)
    return [name for name in map(str, dataset.data_vars) if name not in hidden]


def _tables(key: str, dataset: "xarray.Dataset", axis: str, told: list[str]) -> list[Block]:
    """What runs along an axis, a few numbers side by side."""
    along = [name for name in told if _runs_along(dataset[name], axis)]
    return [_table(key, dataset, axis, along[at : at + WIDEST]) for at in range(0, len(along), WIDEST)]


def _lines(key: str, dataset: "xarray.Dataset", names: list[str]) -> list[Block]:
    lines = [_line(dataset, name) for name in names]
    return [Lines(f"{key}, other numbers", lines)] if lines else []


def _of_texts(dataset: "xarray.Dataset") -> set[str]:
    """What `over_texts` put beside a field of its own accord, its interval and its distance from chance: the files have them."""
    if "bootstrap" not in dataset.attrs:
        return set()
    declared = analysis(dataset.attrs["analysis"]).fields
    names = [str(name) for name in dataset.data_vars if name not in declared]
    return {name for name in names for end in OF_TEXTS if name.endswith(end) and name.removesuffix(end) in declared}


def _beside(dataset: "xarray.Dataset") -> set[str]:
    """Nulls that stand small beside what they are of."""
    fields = [field for field in dataset.data_vars.values() if _in_a_table(field)]
    nulls = {str(field.attrs.get("null", "")): field.dims for field in fields}
    return {null for null, dims in nulls.items() if null in dataset and dataset[null].dims == dims}


def _spreads(dataset: "xarray.Dataset") -> set[str]:
    """Standard deviations of nulls: the files have them."""
    return {str(field.attrs.get("null_sd", "")) for field in dataset.data_vars.values()}


def _empty_ends(dataset: "xarray.Dataset") -> set[str]:
    """Ends of intervals that there are none of."""
    ends = [str(name) for name in dataset.data_vars if str(name).endswith(("_low", "_high"))]
    return {name for name in ends if dataset[name].dtype.kind == "f" and not np.isfinite(dataset[name].values).any()}


def _in_a_table(field: "xarray.DataArray") -> bool:
    return any(_runs_along(field, str(axis)) for axis in field.dims) or _crosses(field)


def _crosses(field: "xarray.DataArray") -> bool:
    """Whether it is one number for every two places of two axes, over heads in the median, few enough to print."""
    sizes = sorted(field.sizes[axis] for axis in _axes(field))
    told = field.dtype.kind == "f" and not {"token", "draw"} & set(field.dims)
    return told and len(sizes) == 2 and sizes[0] <= WIDEST and sizes[1] <= LONGEST


def _axes(field: "xarray.DataArray") -> list[str]:
    """All but heads, the axis of most places first."""
    return sorted((str(axis) for axis in field.dims if axis != "head"), key=lambda axis: -field.sizes[axis])


def _crossed(key: str, dataset: "xarray.Dataset", name: str) -> Table:
    """One field, a row for every place of its longer axis."""
    field = dataset[name]
    rows, columns = _axes(field)
    null = str(field.attrs.get("null", ""))
    values, by_chance = _over_heads(field, rows, columns), None
    if null in dataset and dataset[null].dims == field.dims:
        by_chance = _over_heads(dataset[null], rows, columns)
    said = str(field.attrs.get("definition", ""))
    header = [Cell(rows), *(Cell(f"{columns} {place}", said) for place in dataset[columns].values)]
    told = [
        [Cell(str(place)), *(_beside_null(values, by_chance, at, j) for j in range(values.shape[1]))]
        for at, place in enumerate(dataset[rows].values)
    ]
    median = ", median over heads" if "head" in field.dims else ""
    return Table(
        f"{key}: {name} by {rows} and {columns}{median}",
        header,
        told,
        small="small: what chance gives" if by_chance is not None else "",
    )


def _over_heads(field: "xarray.DataArray", rows: str, columns: str) -> np.ndarray:
    field = field.median("head") if "head" in field.dims else field
    return np.asarray(field.transpose(rows, columns).values, dtype=float)


def _beside_null(values: np.ndarray, null: np.ndarray | None, row: int, column: int) -> Cell:
    beside = "none" if null is None else short(float(null[row, column]))
    return Cell(short(float(values[row, column])), small="" if beside == "none" else beside)


def _runs_along(field: "xarray.DataArray", axis: str) -> bool:
    """Whether it is one number for every place of an axis, over heads in the median; draws are one like the other."""
    return axis != "draw" and (field.dims == (axis,) or (field.dims == (axis, "head") and field.dtype.kind in "fiub"))


def _table(key: str, dataset: "xarray.Dataset", axis: str, names: list[str]) -> Table:
    header = [Cell(axis), *(Cell(name, str(dataset[name].attrs.get("definition", ""))) for name in names)]
    places = [str(place) for place in dataset[axis].values][:LONGEST]
    rows = [[Cell(place), *(_cell(dataset, name, at) for name in names)] for at, place in enumerate(places)]
    median = ", median over heads" if any("head" in dataset[name].dims for name in names) else ""
    cut = f"the first {LONGEST} of {dataset.sizes[axis]}; the files have all" if dataset.sizes[axis] > LONGEST else ""
    return Table(f"{key} by {axis}{median}", header, rows, note=cut)


def _cell(dataset: "xarray.Dataset", name: str, at: int) -> Cell:
    field = dataset[name]
    null = str(field.attrs.get("null", ""))
    beside = short(_number(dataset[null].values, at)) if null in dataset and dataset[null].dims == field.dims else ""
    value = field.values[at]
    text = str(value) if field.dtype.kind in "UO" else short(_number(field.values, at))
    return Cell(text, small="" if beside == "none" else beside)


def _number(values: np.ndarray, at: int) -> float:
    row = np.asarray(values[at], dtype=float)
    return float(np.median(row)) if row.ndim else float(row)


def _line(dataset: "xarray.Dataset", name: str) -> str:
    field = dataset[name]
    unit = f" {field.attrs['unit']}" if field.attrs.get("unit") else ""
    if not field.dims:
        value = field.values.item()
        ends = [short(float(dataset[f"{name}_{end}"])) for end in ("low", "high") if f"{name}_{end}" in dataset]
        interval = f" ({' to '.join(ends)})" if ends else ""
        return f"{name}: {short(float(value)) if isinstance(value, int | float) else value}{unit}{interval}"
    axes = ", ".join(f"{axis} {size}" for axis, size in zip(field.dims, field.shape, strict=True))
    if field.dtype.kind not in "fiub" or not np.isfinite(np.asarray(field.values, dtype=float)).any():
        return f"{name} ({axes})"
    values = np.asarray(field.values, dtype=float)
    low, middle, high = (short(float(of(values))) for of in (np.nanmin, np.nanmedian, np.nanmax))
    return f"{name} ({axes}): from {low} to {high}, median {middle}{unit}"
