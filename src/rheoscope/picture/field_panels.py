"""The picture that follows from the fields of an answer, where nobody drew another: their axes say how, their nulls stand beside.

A map for (layer, head); curves along layers, steps and points; bars for named things; squares for any other two axes; words
for single numbers.
"""

import re
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.bars import bars
from rheoscope.picture.head_map import TYPED, head_map
from rheoscope.picture.picture import CLUSTERS, Axis, Cells, Line, Mark, Panel, Picture, Shape, Word, number
from rheoscope.picture.token_labels import places, shown

if TYPE_CHECKING:
    import xarray

PANELS = 12
"""What one picture can hold; further fields are named in its caption."""
STRONGEST = 14
"""Bars that one panel can name."""
SQUARES = 10_000
"""Squares that one panel can hold: an SVG of them has a megabyte."""
DEPTH = ("layer", "step", "point", "end", "turn", "time")
"""Axes along which numbers are a curve, in the order in which one of two is chosen."""
CAPTION = (
    "Every field of the answer by itself. Dashed is what chance gives, as far as it is known, and its band one standard deviation of "
    "that; a band around a curve is the interval of the curve."
)
BARE = Axis(bare=True, low=0.0, high=1.0)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """A panel a field in the order of the answer, single numbers together; what has no room is named."""
    names = drawable(dataset)
    scalars = [name for name in names if not dataset[name].dims]
    others = [name for name in names if dataset[name].dims]
    room = PANELS - bool(scalars)
    left = [*others[room:], *(name for name in own_fields(dataset) if name not in names)]
    panels = [panel(dataset, name, types) for name in others[:room]]
    typed = TYPED if types is not None and any(_of_heads(dataset[name]) for name in others[:room]) else ""
    not_drawn = f" Not drawn: {', '.join(in_words(name) for name in left)}." if left else ""
    caption = CAPTION + typed + not_drawn
    single = [words(dataset, scalars)] if scalars or not panels else []
    return Picture(_title(dataset), caption, (*panels, *single))


def own_fields(dataset: "xarray.Dataset") -> list[str]:
    """The fields that are not what another one is compared with, and not the ends of its interval."""
    fields = {str(name): dataset[name] for name in dataset.data_vars}
    beside = {one.attrs.get(part, "") for one in fields.values() for part in ("null", "null_sd")}
    ends = {f"{name}_{end}" for name in fields for end in ("low", "high")}
    return [name for name in fields if name not in beside | ends]


def drawable(dataset: "xarray.Dataset") -> list[str]:
    """Numbers on at most two axes, not too many of them; words and the ids of tokens have no height and no colour."""
    return [name for name in own_fields(dataset) if _has_height(dataset[name])]


def _has_height(field: "xarray.DataArray") -> bool:
    said = f"{field.attrs.get('definition', '')} {field.attrs.get('unit', '')}"
    named = field.dtype.kind in "iu" and re.search(r"\bids?\b", said) is not None
    return field.dtype.kind in "biuf" and not named and field.ndim <= 2 and 0 < field.size <= SQUARES


def panel(dataset: "xarray.Dataset", name: str, types: "xarray.Dataset | None" = None) -> Panel:
    """One field with at least one axis, as its axes say."""
    field = dataset[name]
    if _of_heads(field):
        return heads(dataset, name, types)
    if field.ndim == 1:
        dim = str(field.dims[0])
        return strongest(dataset, name) if _named(dataset, dim) else curves(dataset, name, dim, "")
    depth = [dim for dim in DEPTH if dim in field.dims]
    other = next((str(dim) for dim in field.dims if dim != depth[0]), "") if depth else ""
    if depth and other != "token" and dataset.sizes[other] <= len(CLUSTERS):
        return curves(dataset, name, depth[0], other)
    return squares(dataset, name, depth[0] if depth else str(field.dims[0]))


def heads(dataset: "xarray.Dataset", name: str, types: "xarray.Dataset | None") -> Panel:
    """One square a head; what chance gives under the pointer."""
    table = {part: beside(dataset, name, part) for part in ("null", "null_sd")}
    ends = dict(zip(("from", "to"), ends_of(dataset, name), strict=False))
    told = {in_words(part).lower(): one for part, one in (table | ends).items() if one is not None}
    grid = {part: one.transpose("layer", "head").values.astype(float) for part, one in told.items()}
    values = dataset[name].transpose("layer", "head").values.astype(float)
    scale = _unit(dataset, name) or in_words(name).lower()
    return head_map(in_words(name), _about(dataset, name), values, _reach(values), beside=grid, types=types, name=scale)


def curves(dataset: "xarray.Dataset", name: str, along: str, by: str) -> Panel:
    """A curve along an axis, or one for each place of another, with its interval, beside what chance gives."""
    axis, order, at = _along(dataset, along)
    null = dataset.get(dataset[name].attrs.get("null", ""))
    shared = bool(by) and null is not None and by not in null.dims
    marks: list[Mark] = []
    named = _places(dataset, by) if by else (in_words(name).lower(),)
    for place, (series, colour) in enumerate(zip(named, CLUSTERS, strict=False)):
        one = dataset.isel({by: place}) if by else dataset
        if not shared or place == 0:  # one null for all curves is drawn once
            marks += chance(one, name, order, at, "null" if shared or not by else colour, "" if shared else series)
        if ends := ends_of(one, name):
            low, high = (_row(end, order) for end in ends)
            marks += band(at, low, high, colour, f"{series}: interval")
        own = _row(one[name], order)
        dots = along == "token" or np.isfinite(own).sum() < 2
        marks.append(Line(series, at, own, colour, "dots" if dots else "solid"))
    wide = 3 if along == "token" else 1
    return Panel(in_words(name), _about(dataset, name), tuple(marks), axis, Axis(_unit(dataset, name)), wide)


def chance(
    dataset: "xarray.Dataset", name: str, order: np.ndarray, at: np.ndarray, colour: str, series: str
) -> list[Mark]:
    """The null of a curve, dashed, in the band of its standard deviation; nothing where a field has none."""
    null, sd = (beside(dataset, name, part) for part in ("null", "null_sd"))
    if null is None:
        return []
    middle, said = _row(null, order), f"{series}, null".removeprefix(", ")
    spread = None if sd is None else _row(sd, order)
    around = (
        [] if spread is None else band(at, middle - spread, middle + spread, colour, f"{said}, one standard deviation")
    )
    return [*around, Line(said, at, middle, colour, "dashed")]


def _row(field: "xarray.DataArray", order: np.ndarray) -> np.ndarray:
    return field.values.astype(float)[order]


def band(at: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str, tip: str) -> list[Mark]:
    """From low to high, where both are there."""
    there = np.isfinite(low) & np.isfinite(high)
    x, low, high = at[there], low[there], high[there]
    outline = np.concatenate([x, x[::-1]]), np.concatenate([low, high[::-1]])
    return [Shape("", *outline, colour, 0.15, tip)] if len(x) > 1 else []


def strongest(dataset: "xarray.Dataset", name: str) -> Panel:
    """A bar for each named place, or for those that are farthest from 0."""
    field = dataset[name]
    values, dim = field.values.astype(float), str(field.dims[0])
    there = np.flatnonzero(np.isfinite(values))
    chosen = there if len(there) <= STRONGEST else there[np.argsort(-np.abs(values[there]), kind="stable")[:STRONGEST]]
    named = _places(dataset, dim)
    table = [(named[at], float(values[at])) for at in chosen]
    cut = f" The {len(chosen)} farthest from 0 of {len(values)}." if len(chosen) < len(there) else ""
    return bars(in_words(name), _about(dataset, name) + cut, table, _unit(dataset, name))


def squares(dataset: "xarray.Dataset", name: str, rows: str) -> Panel:
    """A square for every pair of places."""
    columns = next(str(dim) for dim in dataset[name].dims if dim != rows)
    values = dataset[name].transpose(rows, columns).values.astype(float)
    sides = [_places(dataset, dim) for dim in (rows, columns)]
    null = beside(dataset, name, "null")
    by_chance = None if null is None else null.transpose(rows, columns).values.astype(float)
    tips = [
        [f"{a}, {b}: {number(float(values[i, j]))}{_null_at(by_chance, i, j)}" for j, b in enumerate(sides[1])]
        for i, a in enumerate(sides[0])
    ]
    low, high = _reach(values)
    marks = (Cells(values, tips=tips, low=low, high=high, name=_unit(dataset, name) or in_words(name).lower()),)
    height = min(3.0, max(0.8, (len(values) * 9 + 46) / 236))
    axes = Axis(in_words(columns).lower(), sides[1]), Axis("" if rows in DEPTH else in_words(rows).lower(), sides[0])
    return Panel(in_words(name), _about(dataset, name), marks, *axes, 2 if values.shape[1] > 20 else 1, height)


def words(dataset: "xarray.Dataset", names: list[str]) -> Panel:
    """Single numbers, a line each."""
    lines = []
    for name in names:
        null, ends = beside(dataset, name, "null"), ends_of(dataset, name)
        spread = f" ({' … '.join(number(float(end)) for end in ends)})" if ends else ""
        by_chance = "" if null is None else f", null {number(float(null))}"
        unit = f" {_unit(dataset, name)}".rstrip()
        lines.append(f"{in_words(name)}: {number(float(dataset[name]))}{unit}{spread}{by_chance}")
    lines = lines or ["no field of this answer holds a number that can be drawn"]
    at = np.linspace(1, 0, len(lines) + 2)[1:-1]
    marks = tuple(Word(0.5, float(y), line, "middle") for y, line in zip(at, lines, strict=True))
    about = " ".join(f"{in_words(name)}: {_about(dataset, name)}" for name in names)
    return Panel("Single numbers", about, marks, BARE, BARE, height=max(0.4, (len(lines) * 20 + 46) / 236))


def beside(dataset: "xarray.Dataset", name: str, part: str) -> "xarray.DataArray | None":
    """What a field is compared with (`null`, `null_sd`), on the field's own axes; none where there is none."""
    field, other = dataset[name], dataset.get(dataset[name].attrs.get(part, ""))
    if other is None or not set(other.dims) <= set(field.dims):
        return None
    return other.broadcast_like(field).transpose(*field.dims)


def ends_of(dataset: "xarray.Dataset", name: str) -> "list[xarray.DataArray]":
    """Both ends of a field's interval, or none."""
    ends = [dataset[f"{name}_{end}"] for end in ("low", "high") if f"{name}_{end}" in dataset]
    return ends if len(ends) == 2 else []


def in_words(name: str) -> str:
    """A name as a title.

    >>> in_words("identity_share"), in_words("w2_squared")
    ('Identity share', 'W2 squared')
    """
    said = name.replace("_", " ")
    return said[:1].upper() + said[1:]


def _title(dataset: "xarray.Dataset") -> str:
    asked = str(dataset.attrs.get("question") or in_words(str(dataset.attrs["analysis"])))
    return f"{asked} (over {dataset.attrs['texts']} texts)" if "left_out" in dataset.attrs else asked


def _about(dataset: "xarray.Dataset", name: str) -> str:
    """How to read a panel: the field's definition, and its null's."""
    null = dataset.get(dataset[name].attrs.get("null", ""))
    own = str(dataset[name].attrs.get("definition", in_words(name)))
    marks = [str(dataset[name].attrs[mark]) for mark in ("basis", "gauge") if mark in dataset[name].attrs]
    by_chance = [] if null is None else [f"Null: {null.attrs.get('definition', 'what chance gives')}"]
    return ". ".join([own, *marks, *by_chance]) + "."


def _unit(dataset: "xarray.Dataset", name: str) -> str:
    return str(dataset[name].attrs.get("unit", ""))


def _null_at(null: np.ndarray | None, row: int, column: int) -> str:
    return "" if null is None else f", null {number(float(null[row, column]))}"


def _reach(values: np.ndarray) -> tuple[float, float]:
    """Colours from 0, to both sides where values have both signs."""
    finite = values[np.isfinite(values)]
    most = float(np.abs(finite).max()) if len(finite) else 0.0
    return (-(most or 1.0), most or 1.0) if (finite < 0).any() else (0.0, most or 1.0)


def _of_heads(field: "xarray.DataArray") -> bool:
    return set(field.dims) == {"layer", "head"} and field.ndim == 2


def _named(dataset: "xarray.Dataset", dim: str) -> bool:
    """Are the places of an axis words without an order?"""
    return dim in dataset.coords and dataset[dim].dtype.kind in "UO" and dim not in DEPTH


def _along(dataset: "xarray.Dataset", dim: str) -> tuple[Axis, np.ndarray, np.ndarray]:
    """An axis of curves: how it looks, the order of its places from left to right, and where they stand."""
    count = dataset.sizes[dim]
    if dim not in ("layer", "token") and dataset[dim].dtype.kind in "iuf":
        order = np.argsort(dataset[dim].values, kind="stable")
        return Axis(in_words(dim).lower()), order, dataset[dim].values[order].astype(float)
    shown_as = "" if dim in DEPTH else in_words(dim).lower()
    return Axis(shown_as, _places(dataset, dim)), np.arange(count), np.arange(count)


def _places(dataset: "xarray.Dataset", dim: str) -> tuple[str, ...]:
    """The places of an axis as a person reads them."""
    values = dataset[dim].values
    if dim == "layer":
        return tuple(f"L{value}" for value in values)
    if dim == "token" and "word" in dataset.coords and dataset.word.dims == ("token",):
        return tuple(f"{value} {shown(str(word))}" for value, word in zip(values, dataset.word.values, strict=True))
    if values.dtype.kind in "UO":
        return tuple(places(values)) if dim in DEPTH else tuple(map(str, values))
    return tuple(f"{in_words(dim).lower()} {number(float(value))}" for value in values)
