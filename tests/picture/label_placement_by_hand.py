"""Names beside dots one after the other, side by side: slow and obvious, what `picture/label_placement.py` must find at once."""

from collections.abc import Sequence

import numpy as np

from rheoscope.picture.label_placement import COVERED, LETTER, LINE, OFF, SIDES, Name, Spans, written
from rheoscope.picture.picture import Word


def box(name: Name, where: str, width: float) -> np.ndarray:
    """Left, low, right and high of a name that stands on one side of its dot."""
    wide, tall, off = len(written(name)) * LETTER * width, LINE * width, OFF * width * (2 if name.strong else 1)
    across, up = SIDES[where]
    x, y = name.x + across * (wide + 2 * off), name.y + up * (tall + 2 * off)
    return np.array([x - wide / 2, y - tall / 2, x + wide / 2, y + tall / 2])


def by_hand(names: Sequence[Name], dots: np.ndarray, spans: Spans, most: int, columns: int = 1) -> list[Word]:
    words: list[Word] = []
    taken: list[np.ndarray] = []
    (left, right), (low, high) = spans

    def covered(one: np.ndarray) -> int:
        return sum(one[0] < x < one[2] and one[1] < y < one[3] for x, y in dots)

    def meets(one: np.ndarray) -> int:
        return sum(bool((other[:2] < one[2:]).all() and (one[:2] < other[2:]).all()) for other in taken)

    def fits(one: np.ndarray) -> bool:
        inside = left <= one[0] and one[2] <= right and low <= one[1] and one[3] <= high
        return inside and not meets(one) and covered(one) <= COVERED

    for name in names:
        boxes = {where: box(name, where, (right - left) / columns) for where in SIDES}
        room = [where for where, one in boxes.items() if name.strong or fits(one)]
        if room and len(words) < most:
            best = min(room, key=lambda where: (meets(boxes[where]), covered(boxes[where])))
            words.append(Word(name.x, name.y, written(name), best, name.strong))
            taken.append(boxes[best])
    return words
