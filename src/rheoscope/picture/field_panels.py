"""The picture that follows from the fields of an answer, where nobody drew another: their axes say how, their nulls stand beside.

A map for (layer, head); curves along layers, steps and points; bars for named things; squares for any other two axes; words
for single numbers.
"""

import re
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.bars import bar_panel
from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import (
    SERIES_COLOURS,
    Axis,
    Cells,
    Label,
    Line,
    Mark,
    Panel,
    Picture,
    Shape,
    format_value,
)
from rheoscope.picture.token_labels import display_token, step_names

if TYPE_CHECKING:
    import xarray

MAX_PANELS = 12
"""What one picture can hold; further fields are named in its caption."""
MAX_BARS = 14
"""Bars that one panel can name."""
MAX_CELLS = 10_000
"""Squares that one panel can hold: an SVG of them has a megabyte."""
CURVE_DIMS = ("layer", "step", "point", "end", "turn", "time", "application")
"""Axes along which numbers are a curve, in the order in which one of two is chosen."""
CAPTION = (
    "Every field of the answer by itself. Dashed is what chance gives, as far as it is known, and its band one standard deviation of "
    "that; a band around a curve is the interval of the curve."
)
BARE_AXIS = Axis(bare=True, low=0.0, high=1.0)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """A panel a field in the order of the answer, single numbers together; what has no room is named."""
    names = drawable_fields(dataset)
    scalars = [name for name in names if not dataset[name].dims]
    axis_fields = [name for name in names if dataset[name].dims]
    n_panels = MAX_PANELS - bool(scalars)
    undrawn = [*axis_fields[n_panels:], *(name for name in main_fields(dataset) if name not in names)]
    panels = [field_panel(dataset, name, types) for name in axis_fields[:n_panels]]
    types_note = (
        TYPES_CAPTION
        if types is not None and any(_is_per_head(dataset[name]) for name in axis_fields[:n_panels])
        else ""
    )
    undrawn_note = f" Not drawn: {', '.join(field_title(name) for name in undrawn)}." if undrawn else ""
    caption = CAPTION + types_note + undrawn_note
    scalar_panels = [scalar_panel(dataset, scalars)] if scalars or not panels else []
    return Picture(_picture_title(dataset), caption, (*panels, *scalar_panels))


def main_fields(dataset: "xarray.Dataset") -> list[str]:
    """The fields that are not what another one is compared with, and not the ends of its interval."""
    fields = {str(name): dataset[name] for name in dataset.data_vars}
    null_names = {field.attrs.get(role, "") for field in fields.values() for role in ("null", "null_sd")}
    interval_names = {f"{name}_{end}" for name in fields for end in ("low", "high")}
    return [name for name in fields if name not in null_names | interval_names]


def drawable_fields(dataset: "xarray.Dataset") -> list[str]:
    """Numbers on at most two axes, not too many of them; words and the ids of tokens have no height and no colour."""
    return [name for name in main_fields(dataset) if _is_drawable(dataset[name])]


def _is_drawable(field: "xarray.DataArray") -> bool:
    description = f"{field.attrs.get('definition', '')} {field.attrs.get('unit', '')}"
    is_token_id = field.dtype.kind in "iu" and re.search(r"\bids?\b", description) is not None
    return field.dtype.kind in "biuf" and not is_token_id and field.ndim <= 2 and 0 < field.size <= MAX_CELLS


def field_panel(dataset: "xarray.Dataset", name: str, types: "xarray.Dataset | None" = None) -> Panel:
    """One field with at least one axis, as its axes say."""
    field = dataset[name]
    if _is_per_head(field):
        return head_panel(dataset, name, types)
    if field.ndim == 1:
        dim = str(field.dims[0])
        return strongest_bars(dataset, name) if _is_categorical(dataset, dim) else curve_panel(dataset, name, dim, "")
    curve_dims = [dim for dim in CURVE_DIMS if dim in field.dims]
    other_dim = next((str(dim) for dim in field.dims if dim != curve_dims[0]), "") if curve_dims else ""
    if curve_dims and other_dim != "token" and dataset.sizes[other_dim] <= len(SERIES_COLOURS):
        return curve_panel(dataset, name, curve_dims[0], other_dim)
    return cell_panel(dataset, name, curve_dims[0] if curve_dims else str(field.dims[0]))


def head_panel(dataset: "xarray.Dataset", name: str, types: "xarray.Dataset | None") -> Panel:
    """One square a head; what chance gives under the pointer."""
    nulls = {role: null_of_field(dataset, name, role) for role in ("null", "null_sd")}
    interval = dict(zip(("from", "to"), interval_ends(dataset, name), strict=False))
    extras = {field_title(role).lower(): array for role, array in (nulls | interval).items() if array is not None}
    tip_values = {role: array.transpose("layer", "head").values.astype(float) for role, array in extras.items()}
    values = dataset[name].transpose("layer", "head").values.astype(float)
    scale_name = _unit(dataset, name) or field_title(name).lower()
    return head_map(
        field_title(name),
        _panel_description(dataset, name),
        values,
        _colour_range(values),
        tip_values=tip_values,
        types=types,
        name=scale_name,
    )


def curve_panel(dataset: "xarray.Dataset", name: str, dim: str, series_dim: str) -> Panel:
    """A curve along an axis, or one for each place of another, with its interval, beside what chance gives."""
    axis, order, x = _curve_axis(dataset, dim)
    null = dataset.get(dataset[name].attrs.get("null", ""))
    shares_null = bool(series_dim) and null is not None and series_dim not in null.dims
    marks: list[Mark] = []
    series_names = _dim_labels(dataset, series_dim) if series_dim else (field_title(name).lower(),)
    for index, (series, colour) in enumerate(zip(series_names, SERIES_COLOURS, strict=False)):
        subset = dataset.isel({series_dim: index}) if series_dim else dataset
        if not shares_null or index == 0:  # one null for all curves is drawn once
            marks += null_marks(
                subset,
                name,
                order,
                x,
                "null" if shares_null or not series_dim else colour,
                "" if shares_null else series,
            )
        if interval := interval_ends(subset, name):
            low, high = (_ordered_values(end, order) for end in interval)
            marks += band_marks(x, low, high, colour, f"{series}: interval")
        values = _ordered_values(subset[name], order)
        as_dots = dim == "token" or np.isfinite(values).sum() < 2
        marks.append(Line(series, x, values, colour, "dots" if as_dots else "solid"))
    columns = 3 if dim == "token" else 1
    return Panel(
        field_title(name), _panel_description(dataset, name), tuple(marks), axis, Axis(_unit(dataset, name)), columns
    )


def null_marks(
    dataset: "xarray.Dataset", name: str, order: np.ndarray, x: np.ndarray, colour: str, series: str
) -> list[Mark]:
    """The null of a curve, dashed, in the band of its standard deviation; nothing where a field has none."""
    null, sd = (null_of_field(dataset, name, role) for role in ("null", "null_sd"))
    if null is None:
        return []
    mean, label = _ordered_values(null, order), f"{series}, null".removeprefix(", ")
    sd_values = None if sd is None else _ordered_values(sd, order)
    sd_band = (
        []
        if sd_values is None
        else band_marks(x, mean - sd_values, mean + sd_values, colour, f"{label}, one standard deviation")
    )
    return [*sd_band, Line(label, x, mean, colour, "dashed")]


def _ordered_values(field: "xarray.DataArray", order: np.ndarray) -> np.ndarray:
    return field.values.astype(float)[order]


def band_marks(x_values: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str, tip: str) -> list[Mark]:
    """From low to high, where both are there."""
    is_finite = np.isfinite(low) & np.isfinite(high)
    x, low, high = x_values[is_finite], low[is_finite], high[is_finite]
    outline = np.concatenate([x, x[::-1]]), np.concatenate([low, high[::-1]])
    return [Shape("", *outline, colour, 0.15, tip)] if len(x) > 1 else []


def strongest_bars(dataset: "xarray.Dataset", name: str) -> Panel:
    """A bar for each named place, or for those that are farthest from 0."""
    field = dataset[name]
    values, dim = field.values.astype(float), str(field.dims[0])
    finite = np.flatnonzero(np.isfinite(values))
    selected = (
        finite if len(finite) <= MAX_BARS else finite[np.argsort(-np.abs(values[finite]), kind="stable")[:MAX_BARS]]
    )
    labels = _dim_labels(dataset, dim)
    entries = [(labels[index], float(values[index])) for index in selected]
    truncation_note = f" The {len(selected)} farthest from 0 of {len(values)}." if len(selected) < len(finite) else ""
    return bar_panel(
        field_title(name), _panel_description(dataset, name) + truncation_note, entries, _unit(dataset, name)
    )


def cell_panel(dataset: "xarray.Dataset", name: str, row_dim: str) -> Panel:
    """A square for every pair of places."""
    column_dim = next(str(dim) for dim in dataset[name].dims if dim != row_dim)
    values = dataset[name].transpose(row_dim, column_dim).values.astype(float)
    labels = [_dim_labels(dataset, dim) for dim in (row_dim, column_dim)]
    null = null_of_field(dataset, name, "null")
    null_values = None if null is None else null.transpose(row_dim, column_dim).values.astype(float)
    tips = [
        [
            f"{a}, {b}: {format_value(float(values[i, j]))}{_null_tip(null_values, i, j)}"
            for j, b in enumerate(labels[1])
        ]
        for i, a in enumerate(labels[0])
    ]
    low, high = _colour_range(values)
    marks = (Cells(values, tips=tips, low=low, high=high, name=_unit(dataset, name) or field_title(name).lower()),)
    height = min(3.0, max(0.8, (len(values) * 9 + 46) / 236))
    axes = (
        Axis(field_title(column_dim).lower(), labels[1]),
        Axis("" if row_dim in CURVE_DIMS else field_title(row_dim).lower(), labels[0]),
    )
    return Panel(
        field_title(name), _panel_description(dataset, name), marks, *axes, 2 if values.shape[1] > 20 else 1, height
    )


def scalar_panel(dataset: "xarray.Dataset", names: list[str]) -> Panel:
    """Single numbers, a line each."""
    lines = []
    for name in names:
        null, interval = null_of_field(dataset, name, "null"), interval_ends(dataset, name)
        interval_text = f" ({' … '.join(format_value(float(end)) for end in interval)})" if interval else ""
        null_text = "" if null is None else f", null {format_value(float(null))}"
        unit = f" {_unit(dataset, name)}".rstrip()
        lines.append(f"{field_title(name)}: {format_value(float(dataset[name]))}{unit}{interval_text}{null_text}")
    lines = lines or ["no field of this answer holds a number that can be drawn"]
    heights = np.linspace(1, 0, len(lines) + 2)[1:-1]
    marks = tuple(Label(0.5, float(y), line, "middle") for y, line in zip(heights, lines, strict=True))
    description = " ".join(f"{field_title(name)}: {_panel_description(dataset, name)}" for name in names)
    return Panel(
        "Single numbers", description, marks, BARE_AXIS, BARE_AXIS, height=max(0.4, (len(lines) * 20 + 46) / 236)
    )


def null_of_field(dataset: "xarray.Dataset", name: str, role: str) -> "xarray.DataArray | None":
    """What a field is compared with (`null`, `null_sd`), on the field's own axes; none where there is none."""
    field, null = dataset[name], dataset.get(dataset[name].attrs.get(role, ""))
    if null is None or not set(null.dims) <= set(field.dims):
        return None
    return null.broadcast_like(field).transpose(*field.dims)


def interval_ends(dataset: "xarray.Dataset", name: str) -> "list[xarray.DataArray]":
    """Both ends of a field's interval, or none."""
    arrays = [dataset[f"{name}_{end}"] for end in ("low", "high") if f"{name}_{end}" in dataset]
    return arrays if len(arrays) == 2 else []


def field_title(name: str) -> str:
    """A name as a title.

    >>> field_title("identity_share"), field_title("w2_squared")
    ('Identity share', 'W2 squared')
    """
    title = name.replace("_", " ")
    return title[:1].upper() + title[1:]


def _picture_title(dataset: "xarray.Dataset") -> str:
    question = str(dataset.attrs.get("question") or field_title(str(dataset.attrs["analysis"])))
    return f"{question} (over {dataset.attrs['texts']} texts)" if "left_out" in dataset.attrs else question


def _panel_description(dataset: "xarray.Dataset", name: str) -> str:
    """How to read a panel: the field's definition, and its null's."""
    null = dataset.get(dataset[name].attrs.get("null", ""))
    definition = str(dataset[name].attrs.get("definition", field_title(name)))
    dependences = [
        str(dataset[name].attrs[dependence]) for dependence in ("basis", "gauge") if dependence in dataset[name].attrs
    ]
    null_definition = [] if null is None else [f"Null: {null.attrs.get('definition', 'what chance gives')}"]
    return ". ".join([definition, *dependences, *null_definition]) + "."


def _unit(dataset: "xarray.Dataset", name: str) -> str:
    return str(dataset[name].attrs.get("unit", ""))


def _null_tip(null: np.ndarray | None, row: int, column: int) -> str:
    return "" if null is None else f", null {format_value(float(null[row, column]))}"


def _colour_range(values: np.ndarray) -> tuple[float, float]:
    """Colours from 0, to both sides where values have both signs."""
    finite = values[np.isfinite(values)]
    max_abs = float(np.abs(finite).max()) if len(finite) else 0.0
    return (-(max_abs or 1.0), max_abs or 1.0) if (finite < 0).any() else (0.0, max_abs or 1.0)


def _is_per_head(field: "xarray.DataArray") -> bool:
    return set(field.dims) == {"layer", "head"} and field.ndim == 2


def _is_categorical(dataset: "xarray.Dataset", dim: str) -> bool:
    """Are the places of an axis words without an order?"""
    return dim in dataset.coords and dataset[dim].dtype.kind in "UO" and dim not in CURVE_DIMS


def _curve_axis(dataset: "xarray.Dataset", dim: str) -> tuple[Axis, np.ndarray, np.ndarray]:
    """An axis of curves: how it looks, the order of its places from left to right, and where they stand."""
    count = dataset.sizes[dim]
    if dim not in ("layer", "token") and dataset[dim].dtype.kind in "iuf":
        order = np.argsort(dataset[dim].values, kind="stable")
        return Axis(field_title(dim).lower()), order, dataset[dim].values[order].astype(float)
    label = "" if dim in CURVE_DIMS else field_title(dim).lower()
    return Axis(label, _dim_labels(dataset, dim)), np.arange(count), np.arange(count)


def _dim_labels(dataset: "xarray.Dataset", dim: str) -> tuple[str, ...]:
    """The places of an axis as a person reads them."""
    values = dataset[dim].values
    if dim == "layer":
        return tuple(f"L{value}" for value in values)
    if dim == "token" and "token_text" in dataset.coords and dataset.token_text.dims == ("token",):
        return tuple(
            f"{value} {display_token(str(token_text))}"
            for value, token_text in zip(values, dataset.token_text.values, strict=True)
        )
    if values.dtype.kind in "UO":
        return tuple(step_names(values)) if dim in CURVE_DIMS else tuple(map(str, values))
    return tuple(f"{field_title(dim).lower()} {format_value(float(value))}" for value in values)
