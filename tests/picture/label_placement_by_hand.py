"""Names beside dots one after the other, side by side: slow and obvious, what `picture/label_placement.py` must find at once."""

from collections.abc import Sequence

import numpy as np

from rheoscope.picture.label_placement import (
    LABEL_OFFSET,
    LETTER_WIDTH,
    LINE_HEIGHT,
    MAX_COVERED_DOTS,
    SIDE_OFFSETS,
    AxisSpans,
    LabelRequest,
    label_text,
)
from rheoscope.picture.picture import Label


def box(name: LabelRequest, where: str, width: float) -> np.ndarray:
    """Left, low, right and high of a name that stands on one side of its dot."""
    wide, tall, off = (
        len(label_text(name)) * LETTER_WIDTH * width,
        LINE_HEIGHT * width,
        LABEL_OFFSET * width * (2 if name.strong else 1),
    )
    across, up = SIDE_OFFSETS[where]
    x, y = name.x + across * (wide + 2 * off), name.y + up * (tall + 2 * off)
    return np.array([x - wide / 2, y - tall / 2, x + wide / 2, y + tall / 2])


def by_hand(
    names: Sequence[LabelRequest], dots: np.ndarray, spans: AxisSpans, most: int, columns: int = 1
) -> list[Label]:
    words: list[Label] = []
    taken: list[np.ndarray] = []
    (left, right), (low, high) = spans

    def covered(one: np.ndarray) -> int:
        return sum(one[0] < x < one[2] and one[1] < y < one[3] for x, y in dots)

    def meets(one: np.ndarray) -> int:
        return sum(bool((other[:2] < one[2:]).all() and (one[:2] < other[2:]).all()) for other in taken)

    def fits(one: np.ndarray) -> bool:
        inside = left <= one[0] and one[2] <= right and low <= one[1] and one[3] <= high
        return inside and not meets(one) and covered(one) <= MAX_COVERED_DOTS

    for name in names:
        boxes = {where: box(name, where, (right - left) / columns) for where in SIDE_OFFSETS}
        room = [where for where, one in boxes.items() if name.strong or fits(one)]
        if room and len(words) < most:
            best = min(room, key=lambda where: (meets(boxes[where]), covered(boxes[where])))
            words.append(Label(name.x, name.y, label_text(name), best, name.strong))
            taken.append(boxes[best])
    return words
