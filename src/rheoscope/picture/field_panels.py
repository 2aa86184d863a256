"""The default picture of a result: one panel per field, chosen by its axes, with its null distribution.

A field along (layer, head) is a map. Fields along layers, steps or points are curves, and fields along named categories are bars.
Any other two axes give a map of cells. Single numbers are listed as text.
"""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, Verbatim, join
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
"""Panels in one picture. The caption names the other fields."""
MAX_BARS = 14
"""Bars in one panel."""
ABBREVIATIONS = frozenset(("ari", "cka", "kl", "nmi", "rsa"))
"""Words of field names that are capitals in a title."""
MAX_CELLS = 10_000
"""Cells in one panel. An SVG of so many cells has about a megabyte."""
CURVE_DIMS = ("checkpoint", "layer", "step", "point", "end", "turn", "time", "application")
"""Axes along which values form a curve. If a field has two of them, the first in this order is chosen."""
CAPTION = Message(
    "Each panel shows one field of the result. Dashed lines are null means, with a band of one standard deviation. "
    "A band around a solid curve is its interval."
)
TIP_LABELS: dict[str, str] = {
    "null": Message("null"),
    "null_sd": Message("null sd"),
    "from": Message("from"),
    "to": Message("to"),
}
BARE_AXIS = Axis(bare=True, low=0.0, high=1.0)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """One panel per field, in the order of the result, and one panel for all single numbers.

    The caption names the fields that are not drawn.
    """
    names = drawable_fields(dataset)
    scalars = [name for name in names if not dataset[name].dims]
    axis_fields = [name for name in names if dataset[name].dims]
    n_panels = MAX_PANELS - bool(scalars)
    undrawn = [*axis_fields[n_panels:], *(name for name in main_fields(dataset) if name not in names)]
    panels = [field_panel(dataset, name, types) for name in axis_fields[:n_panels]]
    has_types = types is not None and any(_is_per_head(dataset[name]) for name in axis_fields[:n_panels])
    types_note = [TYPES_CAPTION] if has_types else []
    undrawn_note = [Message("Not drawn: {fields}.", fields=join(", ", map(field_title, undrawn)))] if undrawn else []
    caption = join(" ", [CAPTION, *types_note, *undrawn_note])
    scalar_panels = [scalar_panel(dataset, scalars)] if scalars or not panels else []
    return Picture(_picture_title(dataset), caption, (*panels, *scalar_panels))


def main_fields(dataset: "xarray.Dataset") -> list[str]:
    """The fields that are neither the null of another field nor an end of its interval."""
    fields = {str(name): dataset[name] for name in dataset.data_vars}
    null_names = {field.attrs.get(role, "") for field in fields.values() for role in ("null", "null_sd")}
    interval_names = {f"{name}_{end}" for name in fields for end in ("low", "high")}
    return [name for name in fields if name not in null_names | interval_names]


def drawable_fields(dataset: "xarray.Dataset") -> list[str]:
    """The fields with numbers along at most two axes, and at most `MAX_CELLS` of them. Texts and categories are left out."""
    return [name for name in main_fields(dataset) if _is_drawable(dataset[name])]


def _is_drawable(field: "xarray.DataArray") -> bool:
    is_numeric = field.dtype.kind in "biuf" and "categorical" not in field.attrs
    return is_numeric and field.ndim <= 2 and 0 < field.size <= MAX_CELLS


def field_panel(dataset: "xarray.Dataset", name: str, types: "xarray.Dataset | None" = None) -> Panel:
    """The panel of a field with at least one axis."""
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
    """A map with one cell per head. Tooltips show the null and the interval."""
    nulls = {role: null_of_field(dataset, name, role) for role in ("null", "null_sd")}
    interval = dict(zip(("from", "to"), interval_ends(dataset, name), strict=False))
    tip_values = {
        TIP_LABELS[role]: array.transpose("layer", "head").values.astype(float)
        for role, array in (nulls | interval).items()
        if array is not None
    }
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
    """A curve along `dim`, or one curve for each coordinate of `series_dim`, with intervals and nulls."""
    axis, order, x = _curve_axis(dataset, dim)
    null = dataset.get(dataset[name].attrs.get("null", ""))
    shares_null = bool(series_dim) and null is not None and series_dim not in null.dims
    marks: list[Mark] = []
    series_names = _dim_labels(dataset, series_dim) if series_dim else (field_title(name).lower(),)
    for index, (series, colour) in enumerate(zip(series_names, SERIES_COLOURS, strict=False)):
        subset = dataset.isel({series_dim: index}) if series_dim else dataset
        if not shares_null or index == 0:  # a shared null is drawn once
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
            marks += band_marks(x, low, high, colour, Message("{series}: interval", series=series))
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
    """The null mean of a curve, dashed, with a band of one standard deviation. Empty if the field has no null."""
    null, sd = (null_of_field(dataset, name, role) for role in ("null", "null_sd"))
    if null is None:
        return []
    mean, label = _ordered_values(null, order), Message("{series}, null", series=series) if series else Message("null")
    sd_values = None if sd is None else _ordered_values(sd, order)
    sd_band = (
        []
        if sd_values is None
        else band_marks(
            x, mean - sd_values, mean + sd_values, colour, Message("{series}, one standard deviation", series=label)
        )
    )
    return [*sd_band, Line(label, x, mean, colour, "dashed")]


def _ordered_values(field: "xarray.DataArray", order: np.ndarray) -> np.ndarray:
    return field.values.astype(float)[order]


def band_marks(x_values: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str, tip: str) -> list[Mark]:
    """A band from low to high, where both are finite."""
    is_finite = np.isfinite(low) & np.isfinite(high)
    x, low, high = x_values[is_finite], low[is_finite], high[is_finite]
    outline = np.concatenate([x, x[::-1]]), np.concatenate([low, high[::-1]])
    return [Shape("", *outline, colour, 0.15, tip)] if len(x) > 1 else []


def strongest_bars(dataset: "xarray.Dataset", name: str) -> Panel:
    """One bar per category, or only the `MAX_BARS` bars farthest from 0."""
    field = dataset[name]
    values, dim = field.values.astype(float), str(field.dims[0])
    finite = np.flatnonzero(np.isfinite(values))
    selected = (
        finite if len(finite) <= MAX_BARS else finite[np.argsort(-np.abs(values[finite]), kind="stable")[:MAX_BARS]]
    )
    labels = _dim_labels(dataset, dim)
    entries = [(labels[index], float(values[index])) for index in selected]
    description = _panel_description(dataset, name)
    if len(selected) < len(finite):
        truncation_note = Message("The {n} farthest from 0 of {total}.", n=len(selected), total=len(values))
        description = join(" ", [description, truncation_note])
    return bar_panel(field_title(name), description, entries, _unit(dataset, name))


def cell_panel(dataset: "xarray.Dataset", name: str, row_dim: str) -> Panel:
    """A map with `row_dim` as rows and the other axis as columns."""
    column_dim = next(str(dim) for dim in dataset[name].dims if dim != row_dim)
    values = dataset[name].transpose(row_dim, column_dim).values.astype(float)
    labels = [_dim_labels(dataset, dim) for dim in (row_dim, column_dim)]
    null = null_of_field(dataset, name, "null")
    null_values = None if null is None else null.transpose(row_dim, column_dim).values.astype(float)
    tips = [
        [
            join(": ", [join(", ", [row_label, column_label]), _value_text(values, null_values, (i, j))])
            for j, column_label in enumerate(labels[1])
        ]
        for i, row_label in enumerate(labels[0])
    ]
    low, high = _colour_range(values)
    marks = (Cells(values, tips=tips, low=low, high=high, name=_unit(dataset, name) or field_title(name).lower()),)
    height = min(3.0, max(0.8, (len(values) * 9 + 46) / 236))
    axes = (
        Axis(_dim_title(column_dim), labels[1]),
        Axis("" if row_dim in CURVE_DIMS else _dim_title(row_dim), labels[0]),
    )
    return Panel(
        field_title(name), _panel_description(dataset, name), marks, *axes, 2 if values.shape[1] > 20 else 1, height
    )


def scalar_panel(dataset: "xarray.Dataset", names: list[str]) -> Panel:
    """Single numbers, one line of text per field."""
    no_numbers = Message("no field of this result contains numbers that can be drawn")
    lines = [_scalar_line(dataset, name) for name in names] or [no_numbers]
    heights = np.linspace(1, 0, len(lines) + 2)[1:-1]
    marks = tuple(Label(0.5, float(y), line, "middle") for y, line in zip(heights, lines, strict=True))
    description = join(" ", [join(": ", [field_title(name), _panel_description(dataset, name)]) for name in names])
    height = max(0.4, (len(lines) * 20 + 46) / 236)
    return Panel(Message("Single numbers"), description, marks, BARE_AXIS, BARE_AXIS, height=height)


def _scalar_line(dataset: "xarray.Dataset", name: str) -> str:
    """A single number with its unit, its interval and its null."""
    null, interval = null_of_field(dataset, name, "null"), interval_ends(dataset, name)
    parts = [format_value(float(dataset[name]))]
    if unit := _unit(dataset, name):
        parts.append(unit)
    if interval:
        parts.append(f"({' … '.join(format_value(float(end)) for end in interval)})")
    null_text = [] if null is None else [Message("null {value}", value=format_value(float(null)))]
    return join(": ", [field_title(name), join(", ", [join(" ", parts), *null_text])])


def null_of_field(dataset: "xarray.Dataset", name: str, role: str) -> "xarray.DataArray | None":
    """The null mean (`role` "null") or standard deviation ("null_sd") of a field, on the field's axes. None if it has none."""
    field, null = dataset[name], dataset.get(dataset[name].attrs.get(role, ""))
    if null is None or not set(null.dims) <= set(field.dims):
        return None
    return null.broadcast_like(field).transpose(*field.dims)


def interval_ends(dataset: "xarray.Dataset", name: str) -> "list[xarray.DataArray]":
    """Both ends of a field's interval. Empty if it has no interval, or if the interval is NaN because of too few units."""
    arrays = [dataset[f"{name}_{end}"] for end in ("low", "high") if f"{name}_{end}" in dataset]
    return arrays if len(arrays) == 2 and all(bool(end.notnull().any()) for end in arrays) else []


def field_title(name: str) -> str:
    """The name of a field as a title.

    >>> field_title("identity_share"), field_title("w2_squared"), field_title("kl_all_layers")
    ('Identity share', 'W2 squared', 'KL all layers')
    """
    title = " ".join(part.upper() if part in ABBREVIATIONS else part for part in name.split("_"))
    return title[:1].upper() + title[1:]


def _picture_title(dataset: "xarray.Dataset") -> str:
    question: str = dataset.attrs.get("question") or field_title(str(dataset.attrs["analysis"]))
    if "left_out" not in dataset.attrs:
        return question
    return Message("{question} (over {texts} texts)", question=question, texts=int(dataset.attrs["texts"]))


def _panel_description(dataset: "xarray.Dataset", name: str) -> str:
    """The definition of a field, what it depends on, and the definition of its null."""
    null = dataset.get(dataset[name].attrs.get("null", ""))
    attributes = dataset[name].attrs
    sentences = [attributes.get("definition", field_title(name))]
    sentences += [attributes[dependence] for dependence in ("basis", "gauge") if dependence in attributes]
    if null is not None:
        definition = null.attrs.get("definition", Message("the mean of the null distribution"))
        sentences.append(Message("Null: {definition}", definition=definition))
    return join(" ", [Message("{sentence}.", sentence=sentence) for sentence in sentences])


def _unit(dataset: "xarray.Dataset", name: str) -> str:
    unit: str = dataset[name].attrs.get("unit", "")
    return unit


def _value_text(values: np.ndarray, nulls: np.ndarray | None, cell: tuple[int, int]) -> str:
    value = format_value(float(values[cell]))
    if nulls is None:
        return value
    return Message("{value}, null {null}", value=value, null=format_value(float(nulls[cell])))


def _colour_range(values: np.ndarray) -> tuple[float, float]:
    """The colour scale from 0 to the largest value, symmetric about 0 if some values are negative."""
    finite = values[np.isfinite(values)]
    max_abs = float(np.abs(finite).max()) if len(finite) else 0.0
    return (-(max_abs or 1.0), max_abs or 1.0) if (finite < 0).any() else (0.0, max_abs or 1.0)


def _is_per_head(field: "xarray.DataArray") -> bool:
    return set(field.dims) == {"layer", "head"} and field.ndim == 2


def _is_categorical(dataset: "xarray.Dataset", dim: str) -> bool:
    """Whether the coordinates of an axis are names without an order."""
    return dim in dataset.coords and dataset[dim].dtype.kind in "UO" and dim not in CURVE_DIMS


def _curve_axis(dataset: "xarray.Dataset", dim: str) -> tuple[Axis, np.ndarray, np.ndarray]:
    """The x axis of curves, the order of the coordinates from left to right, and their x values."""
    count = dataset.sizes[dim]
    if dim not in ("layer", "token") and dataset[dim].dtype.kind in "iuf":
        order = np.argsort(dataset[dim].values, kind="stable")
        return Axis(_dim_title(dim)), order, dataset[dim].values[order].astype(float)
    label = "" if dim in CURVE_DIMS else _dim_title(dim)
    return Axis(label, _dim_labels(dataset, dim)), np.arange(count), np.arange(count)


def _dim_labels(dataset: "xarray.Dataset", dim: str) -> tuple[str, ...]:
    """Readable labels of the coordinates along an axis."""
    values = dataset[dim].values
    if dim == "layer":
        return tuple(f"L{value}" for value in values)
    if dim == "token" and "token_text" in dataset.coords and dataset.token_text.dims == ("token",):
        return tuple(
            Verbatim(f"{value} {display_token(str(token_text))}")
            for value, token_text in zip(values, dataset.token_text.values, strict=True)
        )
    if values.dtype.kind in "UO":
        return tuple(step_names(values)) if dim in CURVE_DIMS else tuple(map(str, values))
    return tuple(join(" ", [_dim_title(dim), format_value(float(value))]) for value in values)


def _dim_title(dim: str) -> str:
    return field_title(dim).lower()
