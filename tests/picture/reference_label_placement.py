"""A slow reference for `picture/label_placement.py` that places one label after the other and tries every side."""

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


def label_box(request: LabelRequest, side: str, width: float) -> np.ndarray:
    """The left, bottom, right and top of a label on one side of its dot."""
    label_width, label_height, offset = (
        len(label_text(request)) * LETTER_WIDTH * width,
        LINE_HEIGHT * width,
        LABEL_OFFSET * width * (2 if request.strong else 1),
    )
    across, up = SIDE_OFFSETS[side]
    x, y = request.x + across * (label_width + 2 * offset), request.y + up * (label_height + 2 * offset)
    return np.array([x - label_width / 2, y - label_height / 2, x + label_width / 2, y + label_height / 2])


def place_sequentially(
    requests: Sequence[LabelRequest], dots: np.ndarray, spans: AxisSpans, max_labels: int, columns: int = 1
) -> list[Label]:
    labels: list[Label] = []
    taken: list[np.ndarray] = []
    (left, right), (low, high) = spans

    def covered_dots(box: np.ndarray) -> int:
        return sum(box[0] < x < box[2] and box[1] < y < box[3] for x, y in dots)

    def overlaps(box: np.ndarray) -> int:
        return sum(bool((other[:2] < box[2:]).all() and (box[:2] < other[2:]).all()) for other in taken)

    def is_outside(box: np.ndarray) -> bool:
        return bool(box[0] < left or box[2] > right or box[1] < low or box[3] > high)

    def fits(box: np.ndarray) -> bool:
        return not is_outside(box) and not overlaps(box) and covered_dots(box) <= MAX_COVERED_DOTS

    for request in requests:
        boxes = {side: label_box(request, side, (right - left) / columns) for side in SIDE_OFFSETS}
        candidates = [side for side, box in boxes.items() if request.strong or fits(box)]
        if candidates and len(labels) < max_labels:
            best = min(
                candidates, key=lambda side: (is_outside(boxes[side]), overlaps(boxes[side]), covered_dots(boxes[side]))
            )
            labels.append(Label(request.x, request.y, label_text(request), best, request.strong))
            taken.append(boxes[best])
    return labels
