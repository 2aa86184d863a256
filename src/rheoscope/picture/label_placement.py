"""Names beside dots so that they can be read: each on the side where it covers nothing, left out where there is no room."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rheoscope.picture.picture import Word

Spans = tuple[tuple[float, float], tuple[float, float]]
LETTER, LINE = 0.0185, 0.039
"""Width of a letter and height of a line as shares of a panel's width: those of the hand that writes largest (`draw/inline.py`)."""
OFF = 0.018
"""How far a name stands from the middle of its dot."""
SIDES = {"right": (0.5, 0.0), "left": (-0.5, 0.0), "above": (0.0, 0.5), "below": (0.0, -0.5)}
COVERED = 1
"""Dots that a name may cover where it has no free side."""
LONGEST = 16
PART = 64
"""Names whose boxes are held against all dots at once."""


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
    taken = np.empty((0, 4))
    boxes = around(names, (spans[0][1] - spans[0][0]) / columns)
    hidden, strong = covered(boxes, dots), np.array([name.strong for name in names], dtype=bool)
    room = ((hidden <= COVERED) & _inside(boxes, spans)) | strong[:, None]
    for at in np.flatnonzero(room.any(1)).tolist():
        name, met = names[at], _meets(boxes[at], taken)
        _, _, side = min((met[side], hidden[at, side], side) for side in np.flatnonzero(room[at]))
        if len(words) < most and (name.strong or not met[side]):
            words.append(Word(name.x, name.y, written(name), tuple(SIDES)[side], name.strong))
            taken = np.vstack([taken, boxes[at, side]])
    return words


def written(name: Name) -> str:
    """The text of a name, cut where it is long."""
    return name.text if len(name.text) <= LONGEST else name.text[: LONGEST - 1] + "…"


def around(names: Sequence[Name], width: float) -> np.ndarray:
    """Left, low, right and high (names, sides, 4) of every name on every side of its dot."""
    strong = np.array([name.strong for name in names], dtype=bool)
    size = np.array([(len(written(name)) * LETTER * width, LINE * width) for name in names]).reshape(-1, 1, 2)
    off = (OFF * width * np.where(strong, 2, 1))[:, None, None]
    dots = np.array([(name.x, name.y) for name in names]).reshape(-1, 1, 2)
    middle = dots + np.array(list(SIDES.values())) * (size + 2 * off)
    return np.concatenate([middle - size / 2, middle + size / 2], -1)


def covered(boxes: np.ndarray, dots: np.ndarray) -> np.ndarray:
    """How many dots every box (names, sides, 4) covers; in parts, which fit a fast memory."""
    x, y = dots.T

    def of(some: np.ndarray) -> np.ndarray:
        left, low, right, high = np.moveaxis(some, -1, 0)[..., None]
        return ((x > left) & (x < right) & (y > low) & (y < high)).sum(-1)

    return np.concatenate([of(some) for some in np.array_split(boxes, len(boxes) // PART + 1)])


def _meets(boxes: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """How many boxes that are taken each of these (sides, 4) meets."""
    return ((taken[:, :2] < boxes[:, None, 2:]) & (taken[:, 2:] > boxes[:, None, :2])).all(-1).sum(-1)


def _inside(boxes: np.ndarray, spans: Spans) -> np.ndarray:
    low, high = np.array(spans).T
    return ((low <= boxes[..., :2]) & (boxes[..., 2:] <= high)).all(-1)
