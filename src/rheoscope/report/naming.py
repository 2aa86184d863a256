"""Names beside dots so that they can be read: each on the side where it covers nothing, left out where there is no room."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rheoscope.report.picture import Word

Spans = tuple[tuple[float, float], tuple[float, float]]
LETTER, LINE = 0.0185, 0.039
"""Width of a letter and height of a line as shares of a panel's width: those of the hand that writes largest (`draw/inline.py`)."""
OFF = 0.018
"""How far a name stands from the middle of its dot."""
SIDES = {"right": (0.5, 0.0), "left": (-0.5, 0.0), "above": (0.0, 0.5), "below": (0.0, -0.5)}
COVERED = 1
"""Dots that a name may cover where it has no free side."""
LONGEST = 16


@dataclass(frozen=True)
class Name:
    """A text that wants to stand beside a place; a `strong` one stands out, and stands there even where it covers others."""

    x: float
    y: float
    text: str
    strong: bool = False


def named(names: Sequence[Name], dots: np.ndarray, spans: Spans, most: int, columns: int = 1) -> list[Word]:
    """The first `most` names that have room, as words.

    `dots` (n, 2) are not to be covered; `spans` are those of x and of y on a panel of so many `columns` where a unit is as long
    on both.

    >>> dots = np.array([[0.0, 0.0], [0.01, 0.0], [0.5, 0.5]])
    >>> names = [Name(0.0, 0.0, "one"), Name(0.01, 0.0, "the same"), Name(0.5, 0.5, "other")]
    >>> [(word.text, word.side) for word in named(names, dots, ((-1.0, 1.0), (-1.0, 1.0)), 3)]
    [('one', 'right'), ('the same', 'left'), ('other', 'right')]
    """
    words: list[Word] = []
    width, taken = (spans[0][1] - spans[0][0]) / columns, np.empty((0, 4))
    for name in names:
        text = name.text if len(name.text) <= LONGEST else name.text[: LONGEST - 1] + "…"
        boxes = {where: box(name, len(text), where, width) for where in SIDES}
        room = [where for where, one in boxes.items() if name.strong or _fits(one, taken, spans)]
        best = min(room, key=lambda where: (_meets(boxes[where], taken), covered(boxes[where], dots)), default=None)
        if best is not None and (name.strong or covered(boxes[best], dots) <= COVERED) and len(words) < most:
            words.append(Word(name.x, name.y, text, best, name.strong))
            taken = np.vstack([taken, boxes[best]])
    return words


def box(name: Name, letters: int, where: str, width: float) -> np.ndarray:
    """Left, low, right and high of a name that stands on one side of its dot."""
    wide, tall, off = letters * LETTER * width, LINE * width, OFF * width * (2 if name.strong else 1)
    across, up = SIDES[where]
    x, y = name.x + across * (wide + 2 * off), name.y + up * (tall + 2 * off)
    return np.array([x - wide / 2, y - tall / 2, x + wide / 2, y + tall / 2])


def covered(one: np.ndarray, dots: np.ndarray) -> int:
    """How many dots a box covers."""
    left, low, right, high = one
    x, y = dots.T
    return int(((x > left) & (x < right) & (y > low) & (y < high)).sum())


def _meets(one: np.ndarray, taken: np.ndarray) -> int:
    return int(((taken[:, :2] < one[2:]) & (taken[:, 2:] > one[:2])).all(1).sum())


def _fits(one: np.ndarray, taken: np.ndarray, spans: Spans) -> bool:
    (left, right), (low, high) = spans
    return left <= one[0] and one[2] <= right and low <= one[1] and one[3] <= high and not _meets(one, taken)
