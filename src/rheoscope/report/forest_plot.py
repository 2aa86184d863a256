"""The forest plot of a card: a strip for every claim, and the effects of all texts behind an interval."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_fixed
from rheoscope.picture.picture import Axis, Label, Line, Mark, Panel, Shape
from rheoscope.statistics.claim_answers import NO, REVERSED, UNCLEAR, YES

if TYPE_CHECKING:
    import xarray

ANSWERS = {YES: Message("yes"), NO: Message("no"), REVERSED: Message("reversed"), UNCLEAR: Message("unclear")}
COLOURS = {YES: "first", NO: "null", REVERSED: "fourth", UNCLEAR: "fifth"}
"""Neutral colours: a no is a finding, not a failure."""
MAX_DRAWN = 8.0
"""Larger effects are drawn at this multiple of the smallest effect of interest."""
MIN_RANGE = 0.12
"""Half the width of the narrowest range of random models, so that one beyond the edge is visible."""
STRIP_EDGE = 1.04 * MAX_DRAWN
"""The number at the right end of a strip."""
N_BINS = 48
"""Effects of texts in the same bin are stacked."""
RANDOM_ROW, TEXT_ROW, INTERVAL_ROW = 0.0, 1.0, 2.0
"""The rows of the picture of all effects, from the bottom."""
ROW_HEIGHT = 0.8


def signed_number(value: float) -> str:
    """A number with three digits and no leading zero.

    >>> signed_number(0.0512), signed_number(-1.5)
    ('.051', '-1.500')
    """
    return format_fixed(value, 3).replace("0.", ".", 1) if abs(value) < 1 else format_fixed(value, 3)


def clipped(effect: float) -> float:
    """An effect in units of the smallest one, no further out than the edge of the plot."""
    return min(max(effect, -MAX_DRAWN), MAX_DRAWN)


def interval_marks(row: "xarray.Dataset", y: float, tip: Message) -> list[Line | Shape]:
    """A row of a forest plot: what random models reach, the interval and its estimate, in units of the smallest effect."""
    delta, answer = float(row.smallest_effect), str(row.answer.values)
    low, estimate, high = (clipped(float(row[name]) / delta) for name in ("low", "estimate", "high"))
    mean, limit = float(row.random_mean) / delta, float(row.threshold) / delta
    centre = min(max(mean, MIN_RANGE - MAX_DRAWN), MAX_DRAWN - MIN_RANGE)
    left, right = clipped(min(mean - limit, centre - MIN_RANGE)), clipped(max(mean + limit, centre + MIN_RANGE))
    heights = [y - 0.3, y - 0.3, y + 0.3, y + 0.3]
    return [
        Shape(Message("random models"), [left, right, right, left], heights, "null", 0.25),
        Line(ANSWERS[answer], [low, high], [y, y], COLOURS[answer], tip=tip),
        Line(ANSWERS[answer], [estimate], [y], COLOURS[answer], "dots", tip=tip),
    ]


def strip_panel(row: "xarray.Dataset", title: Message) -> Panel:
    """The interval of one claim in units of the smallest effect of interest. All strips have the same scale."""
    edges = [-0.5, 0.5]
    marks: list[Mark] = [
        Line("", [0.0, 0.0], edges, "null", "hair"),
        *(Line("", [side, side], edges, "null", "dashed") for side in (-1.0, 1.0)),
        *interval_marks(row, 0.0, title),
    ]
    return Panel(title, "", tuple(marks), *_strip_axes())


def scale_panel() -> Panel:
    """Where the interval of each answer lies, above the strips."""
    places = {REVERSED: -(1 + STRIP_EDGE) / 2, NO: 0.0, YES: (1 + STRIP_EDGE) / 2}
    marks = tuple(Label(x, 0.0, ANSWERS[answer], "middle") for answer, x in places.items())
    return Panel(Message("Where the interval of each answer lies"), "", marks, *_strip_axes())


def _strip_axes() -> tuple[Axis, Axis]:
    return Axis(bare=True, low=-STRIP_EDGE, high=STRIP_EDGE), Axis(bare=True, low=-0.5, high=0.5)


LEGEND: dict[str, tuple[str, str]] = {
    Message("random models"): ("null", "dots"),
    Message("smallest effect of interest"): ("null", "dashed"),
}
"""The legend of all strips. The answers have their words."""


def effects_panel(row: "xarray.Dataset", random_effects: np.ndarray, title: Message, unit: str) -> Panel:
    """The effect of every text, the interval of their mean, ± the smallest effect, and the effect of every random model.

    `row` is one interval of a card. `random_effects` are relative to the same reference as the effects.
    """
    effects = row.effect.values[np.isfinite(row.effect.values)]
    delta, mean, limit = (float(row[f"part_{name}"]) for name in ("smallest_effect", "random_mean", "threshold"))
    low, estimate, high = (float(row[f"part_{name}"]) for name in ("low", "estimate", "high"))
    colour, edges = COLOURS[str(row.part_answer.values)], [RANDOM_ROW - 0.5, INTERVAL_ROW + 0.4]
    corners = [edges[0], edges[0], edges[1], edges[1]]
    interval = Message(
        "{estimate} ({low} to {high})",
        estimate=signed_number(estimate),
        low=signed_number(low),
        high=signed_number(high),
    )
    marks: list[Mark] = [
        Shape(
            "",
            [mean - limit, mean + limit, mean + limit, mean - limit],
            corners,
            "null",
            0.14,
            Message("random models"),
        ),
        Line("", [0.0, 0.0], edges, "null", "hair"),
        *(Line("", [side, side], edges, "null", "dashed") for side in (-delta, delta)),
        Line("", effects, stacked_heights(effects, TEXT_ROW), colour, "dots"),
        Line("", random_effects, stacked_heights(random_effects, RANDOM_ROW), "null", "dots"),
        Line("", [low, high], [INTERVAL_ROW, INTERVAL_ROW], colour, tip=interval),
        Line("", [estimate], [INTERVAL_ROW], colour, "dots", tip=interval),
    ]
    about = Message(
        "The middle row has the effects of all {unit}. Dashed lines: the smallest effect of interest. The shaded range is what random "
        "models reach.",
        unit=unit,
    )
    names = (Message("random models"), unit, Message("mean"))
    y_axis = Axis("", names, low=edges[0], high=edges[1])
    return Panel(title, about, tuple(marks), Axis(Message("effect")), y_axis, height=0.72)


def stacked_heights(values: np.ndarray, row: float) -> np.ndarray:
    """Heights around a row at which values that are close together do not cover each other.

    >>> stacked_heights(np.array([0.0, 0.0, 1.0]), 1.0).round(2).tolist()
    [0.95, 1.05, 1.0]
    """
    low, high = (values.min(), values.max()) if len(values) else (0.0, 0.0)
    bins = np.minimum((N_BINS * (values - low) / max(high - low, 1e-30)).astype(int), N_BINS - 1)
    counts = np.bincount(bins, minlength=N_BINS)
    spacing = min(0.1, ROW_HEIGHT / max(int(counts.max(initial=1)), 1))
    order = np.argsort(bins, kind="stable")
    places = np.empty(len(bins), dtype=int)
    places[order] = np.arange(len(bins)) - (np.cumsum(counts) - counts)[bins[order]]
    return row + spacing * (places - (counts[bins] - 1) / 2)
