"""A picture as values: panels of lines, shapes, cells and labels.

An analysis declares its picture once. `report/draw/` renders it with matplotlib for papers and as SVG for pages. The studio and
notebooks receive it as JSON. All of them show the same numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

import numpy as np

PALETTE = {
    "first": "#2f6fbf",
    "second": "#d9622b",
    "third": "#2a9a74",
    "fourth": "#a8559a",
    "fifth": "#94801f",
    "sixth": "#6d62cf",
    "seventh": "#c23b4e",
    "eighth": "#1f8fa6",
    "null": "#8a93a6",
    "alone": "#8a93a6",
}
"""Colours with a contrast of at least 3:1 on white and on a dark page, so that one palette serves both."""
SERIES_COLOURS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
DEPTH_COLOURS = ("#2f6fbf", "#4a6cbb", "#6768b4", "#8263a8", "#9b5f97", "#b15d80", "#c35f62", "#d0623f")
"""Colours of an ordered series, from the first to the last."""

Numbers = Sequence[float | int] | np.ndarray


@dataclass(frozen=True, eq=False)
class Line:
    """A series of values y at x. `style` is solid, dashed, hair (thin and light), dots, rings or stars.

    A line with a single finite value is drawn as a dot. `tip` is a tooltip of the whole line, `tips` has one per point. Without
    either, the tooltip shows the values at each x.
    """

    name: str
    x: Numbers
    y: Numbers
    colour: str = "first"
    style: str = "solid"
    tip: str = ""
    tips: Sequence[str] = ()

    def __post_init__(self) -> None:
        finite = islice((y for y in self.y if math.isfinite(y)), 2)
        if self.style in ("solid", "dashed", "hair") and sum(1 for _ in finite) == 1:
            object.__setattr__(self, "style", "dots")  # the dataclass is frozen

    @property
    def has_tip(self) -> bool:
        """Whether it has a tooltip of its own."""
        return bool(self.tip or len(self.tips))


@dataclass(frozen=True, eq=False)
class Shape:
    """A closed, filled outline."""

    name: str
    x: Numbers
    y: Numbers
    colour: str = "first"
    opacity: float = 0.5
    tip: str = ""


MISSING_CELL = "null", 0.25
"""Colour and opacity of a cell without a value."""


@dataclass(frozen=True, eq=False)
class Cells:
    """A map of rows × columns. Colours run from `low` over `centre` to `high`; values below `centre` have the second colour.

    `name` labels the colour scale. With `log`, the values are exponents of ten and the scale shows the numbers themselves.
    Cells without a value are grey, which is not a colour of the scale.
    """

    values: np.ndarray
    texts: Sequence[Sequence[str]] = ()
    tips: Sequence[Sequence[str]] = ()
    marked: frozenset[tuple[int, int]] = frozenset()
    low: float = 0.0
    high: float = 1.0
    centre: float = 0.0
    name: str = ""
    log: bool = False

    @property
    def shades(self) -> np.ndarray:
        """Every value scaled to −1 (strongest colour below the centre) … 1. NaN where there is no value."""
        return np.clip((self.values.astype(float) - self.centre) / self._max_deviation, -1, 1)

    @property
    def scale_ticks(self) -> tuple[tuple[float, str], ...]:
        """Three ticks of the colour scale as (shade, label): both ends and a number between them.

        The label of an end starts with ≤ or ≥ if values lie beyond it. They have the colour of that end.

        >>> Cells(np.array([[0.2, 0.4]])).scale_ticks, Cells(np.array([[-9.0, 2.0]]), low=-5.0, high=5.0).scale_ticks
        (((0.0, '0'), (0.5, '0.5'), (1.0, '1')), ((-1.0, '≤ −5'), (0.0, '0'), (1.0, '5')))
        """
        middle = self.centre if self.low < self.centre < self.high else (self.low + self.high) / 2
        finite = self.values[np.isfinite(self.values)]
        overflow_signs = ("≤ " * bool((finite < self.low).any()), "", "≥ " * bool((finite > self.high).any()))
        return tuple(
            (
                float((value - self.centre) / self._max_deviation),
                sign + format_value(10.0**value if self.log else value).replace("-", "−"),
            )
            for value, sign in zip((self.low, middle, self.high), overflow_signs, strict=True)
        )

    @property
    def tick_fractions(self) -> tuple[float, ...]:
        """The places of the ticks along the scale, from 0 to 1."""
        return tuple(self._scale_fraction(shade) for shade, _ in self.scale_ticks)

    @property
    def colour_stops(self) -> tuple[tuple[float, str, float], ...]:
        """The scale as linear gradients: stops of (shade, colour, place from 0 to 1). A shade of 0 is the background.

        >>> Cells(np.array([[0.2]])).colour_stops
        ((0.0, 'first', 0.0), (1.0, 'first', 1.0))
        """
        (low, _), _, (high, _) = self.scale_ticks
        below = [(low, "second"), (min(high, 0.0), "second")] if low < 0 else []
        above = [(max(low, 0.0), "first"), (high, "first")] if high > 0 else []
        return tuple((shade, colour, self._scale_fraction(shade)) for shade, colour in [*below, *above])

    def _scale_fraction(self, shade: float) -> float:
        (low, _), _, (high, _) = self.scale_ticks
        return (shade - low) / ((high - low) or 1.0)

    @property
    def _max_deviation(self) -> float:
        return max(abs(self.low - self.centre), abs(self.high - self.centre), 1e-30)


@dataclass(frozen=True)
class Label:
    """A text next to (x, y). `side` is left, right, above, below or middle. A `strong` label is emphasised."""

    x: float | int
    y: float | int
    text: str
    side: str = "right"
    strong: bool = False


@dataclass(frozen=True, eq=False)
class Photo:
    """An image behind the other marks: `pixels` (h, w, 3) in red, green and blue, cut into `rows` × `columns` patches.

    Patch (row, column) covers the cell of a map with these indices.
    """

    pixels: np.ndarray
    rows: int
    columns: int


Mark = Line | Shape | Cells | Label | Photo


@dataclass(frozen=True)
class Axis:
    """An axis of a panel. `names` are the labels of 0, 1, …, shown at `marked` or at all of them. Without names it is numeric.

    A `bare` axis has no ticks.
    """

    label: str = ""
    names: tuple[str, ...] = ()
    marked: tuple[int, ...] = ()
    log: bool = False
    bare: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Panel:
    """A pair of axes with its marks. `about` explains how to read it. It is `columns` of three wide and `height` rows high.

    With `equal`, a unit has the same length on both axes, so that a circle is round. A view that shows the same data in its own
    way finds the panel by its `name`, which is not displayed.
    """

    title: str
    about: str
    marks: tuple[Mark, ...]
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    columns: int = 1
    height: float = 1.0
    equal: bool = False
    name: str = ""

    @property
    def legend(self) -> dict[str, tuple[str, str]]:
        """Name → (colour, style) of named shapes, and of named lines without a tooltip of their own."""
        lines = [mark for mark in self.marks if isinstance(mark, Line) and mark.name and not mark.has_tip]
        shapes = [mark for mark in self.marks if isinstance(mark, Shape) and mark.name]
        return {mark.name: (mark.colour, mark.style) for mark in lines} | {
            mark.name: (mark.colour, "dots") for mark in shapes
        }

    @property
    def is_map(self) -> bool:
        """Whether it is a map."""
        return bool(self.cell_maps)

    @property
    def counts_from_top(self) -> bool:
        """Whether rows count from the top, as those of a map and of a photo do."""
        return any(isinstance(mark, Cells | Photo) for mark in self.marks)

    @property
    def cell_maps(self) -> tuple[Cells, ...]:
        """The marks that have a colour scale."""
        return tuple(mark for mark in self.marks if isinstance(mark, Cells))

    def span(self, direction: str) -> tuple[float, float]:
        """The smallest and largest value on the axis `x` or `y`, with some padding."""
        axis: Axis = getattr(self, direction)
        values = np.concatenate([_mark_extent(mark, direction) for mark in self.marks] or [np.array([0.0, 1.0])])
        values = values[np.isfinite(values) & ((values > 0) | (not axis.log))]
        low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
        if not axis.log and low == high:  # a single value is centred
            low, high = low - 0.5, high + 0.5
        elif not axis.log and not axis.names:
            padding = 0.06 * (high - low)
            low, high = (low if low == 0 else low - padding), high + padding
        return (low if axis.low is None else axis.low), (high if axis.high is None else axis.high)


@dataclass(frozen=True)
class Picture:
    """The picture of one analysis: a title, panels, and a caption that explains the quantity and its null."""

    title: str
    caption: str
    panels: tuple[Panel, ...]

    @property
    def legend(self) -> dict[str, tuple[str, str]]:
        """The legend that all maps of the picture share: name → (colour, style)."""
        return {name: style for panel in self.panels if panel.is_map for name, style in panel.legend.items()}

    def rows(self, columns: int = 3) -> list[list[Panel]]:
        """Panels in rows of at most so many columns.

        >>> narrow, wide = Panel("", "", ()), Panel("", "", (), columns=3)
        >>> [len(row) for row in Picture("", "", (narrow, narrow, wide, narrow)).rows()]
        [2, 1, 1]
        """
        rows: list[list[Panel]] = []
        for panel in self.panels:
            if not rows or sum(neighbour.columns for neighbour in rows[-1]) + panel.columns > columns:
                rows.append([])
            rows[-1].append(panel)
        return rows


def colour_of(name: str) -> str:
    """The hex code of a colour of the palette. A hex code is returned unchanged.

    >>> colour_of("null"), colour_of("#123456")
    ('#8a93a6', '#123456')
    """
    return name if name.startswith("#") else PALETTE[name]


def depth_colour(index: int, count: int) -> str:
    """The colour of item `index` in an ordered series of `count` items."""
    return DEPTH_COLOURS[min(index * len(DEPTH_COLOURS) // max(count, 1), len(DEPTH_COLOURS) - 1)]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers between low and high.

    >>> ticks(0.0, 1.0), ticks(3.0, 47.0)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [10.0, 20.0, 30.0, 40.0])
    """
    raw_step = max(high - low, 1e-12) / count
    power = 10.0 ** math.floor(math.log10(raw_step))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw_step * (1 - 1e-9))
    first_multiple = math.ceil(low / step - 1e-9)
    return [round(multiple * step, 12) for multiple in range(first_multiple, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between low and high. Short ranges also get 2 and 5 times them, or evenly spaced round numbers.

    >>> log_ticks(1.0, 2500.0), log_ticks(30.0, 250.0), log_ticks(0.52, 0.94)
    ([1.0, 10.0, 100.0, 1000.0], [50.0, 100.0, 200.0], [0.6, 0.7, 0.8, 0.9])
    """
    powers = [10.0**k for k in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    finer_values = [power * factor for power in powers for factor in (1, 2, 5)]
    power_ticks, finer_ticks = (
        [x for x in values if low * 0.999 <= x <= high * 1.001] for values in (powers, finer_values)
    )
    return power_ticks if len(power_ticks) > 2 else finer_ticks if len(finer_ticks) > 1 else ticks(low, high)


def format_value(value: float) -> str:
    """A number with three significant digits. Large numbers are in thousands (k), millions (M) or billions (B).

    >>> format_value(0.0), format_value(0.1234), format_value(12.34), format_value(1234567.0), format_value(float("nan"))
    ('0', '0.123', '12.3', '1.23M', 'none')
    """
    if not math.isfinite(value):
        return "none" if math.isnan(value) else "∞"
    for unit, scale in UNIT_SIZES.items():
        if 1e5 <= abs(value) < 1e12 and abs(value) >= 0.9995 * scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e5 else f"{value:.3g}"


UNIT_SIZES = {"B": 1e9, "M": 1e6, "k": 1e3}


def _parse_value(text: str) -> float:
    return float(text[:-1]) * UNIT_SIZES[text[-1]] if text[-1] in UNIT_SIZES else float(text)


def tick_labels(values: Sequence[float]) -> list[str]:
    """Labels of evenly spaced numbers, with enough digits to distinguish them.

    >>> tick_labels([0.0, 0.5, 1.0]), tick_labels([2.395, 2.4, 2.405]), tick_labels([0.0, 1e6])
    (['0', '0.5', '1'], ['2.395', '2.400', '2.405'], ['0', '1M'])
    """
    labels = [format_value(value) for value in values]
    spacing = min((b - a for a, b in pairwise(values)), default=1.0)
    if len(set(labels)) == len(labels) and all(
        abs(_parse_value(label) - value) < 1e-3 * spacing for label, value in zip(labels, values, strict=True)
    ):
        return labels
    return [f"{value:.{max(0, -math.floor(math.log10(spacing)))}f}" for value in values]


def thin_labels(axis: Axis, max_labels: int) -> list[int]:
    """At most `max_labels` evenly spaced indices of the named positions of an axis.

    >>> thin_labels(Axis(names=tuple("abcdefghij")), 4), thin_labels(Axis(names=tuple("abcdefg"), marked=(0, 2, 4, 6)), 2)
    ([0, 3, 6, 9], [0, 4])
    """
    indices = axis.marked or range(len(axis.names))
    return list(indices[:: max(1, math.ceil(len(indices) / max_labels))])


def _mark_extent(mark: Mark, direction: str) -> np.ndarray:
    """The values that a mark covers along an axis."""
    if isinstance(mark, Cells):
        rows, columns = mark.values.shape
        return np.array([-0.5, (columns if direction == "x" else rows) - 0.5])
    if isinstance(mark, Photo):
        return np.array([-0.5, (mark.columns if direction == "x" else mark.rows) - 0.5])
    return np.atleast_1d(np.asarray(getattr(mark, direction), dtype=float))
