"""Names beside dots so that they can be read: each on the side where it covers nothing, left out where there is no room."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rheoscope.picture.picture import Label

AxisSpans = tuple[tuple[float, float], tuple[float, float]]
LETTER_WIDTH, LINE_HEIGHT = 0.0185, 0.039
"""Width of a letter and height of a line as shares of a panel's width: those of the hand that writes largest (`draw/inline.py`)."""
LABEL_OFFSET = 0.018
"""How far a name stands from the middle of its dot."""
SIDE_OFFSETS = {"right": (0.5, 0.0), "left": (-0.5, 0.0), "above": (0.0, 0.5), "below": (0.0, -0.5)}
MAX_COVERED_DOTS = 1
"""Dots that a name may cover where it has no free side."""
MAX_LABEL_CHARS = 16
CHUNK_SIZE = 64
"""Names whose boxes are held against all dots at once."""


@dataclass(frozen=True)
class LabelRequest:
    """A text that wants to stand beside a place; a `strong` one stands out, and stands there even where it covers others."""

    x: float
    y: float
    text: str
    strong: bool = False


def place_labels(
    requests: Sequence[LabelRequest], dots: np.ndarray, spans: AxisSpans, max_labels: int, columns: int = 1
) -> list[Label]:
    """The first `most` names that have room, as words.

    `dots` (n, 2) are not to be covered; `spans` are those of x and of y on a panel of so many `columns` where a unit is as long
    on both.

    >>> dots = np.array([[0.0, 0.0], [0.01, 0.0], [0.5, 0.5]])
    >>> names = [LabelRequest(0.0, 0.0, "one"), LabelRequest(0.01, 0.0, "the same"), LabelRequest(0.5, 0.5, "other")]
    >>> [(word.text, word.side) for word in place_labels(names, dots, ((-1.0, 1.0), (-1.0, 1.0)), 3)]
    [('one', 'right'), ('the same', 'left'), ('other', 'right')]
    """
    labels: list[Label] = []
    used_boxes = np.empty((0, 4))
    boxes = label_boxes(requests, (spans[0][1] - spans[0][0]) / columns)
    n_covered, strong = count_covered_dots(boxes, dots), np.array([request.strong for request in requests], dtype=bool)
    has_room = ((n_covered <= MAX_COVERED_DOTS) & _is_inside(boxes, spans)) | strong[:, None]
    for index in np.flatnonzero(has_room.any(1)).tolist():
        request, n_overlaps = requests[index], _count_overlaps(boxes[index], used_boxes)
        _, _, side = min((n_overlaps[side], n_covered[index, side], side) for side in np.flatnonzero(has_room[index]))
        if len(labels) < max_labels and (request.strong or not n_overlaps[side]):
            labels.append(Label(request.x, request.y, label_text(request), tuple(SIDE_OFFSETS)[side], request.strong))
            used_boxes = np.vstack([used_boxes, boxes[index, side]])
    return labels


def label_text(request: LabelRequest) -> str:
    """The text of a name, cut where it is long."""
    return request.text if len(request.text) <= MAX_LABEL_CHARS else request.text[: MAX_LABEL_CHARS - 1] + "…"


def label_boxes(requests: Sequence[LabelRequest], width: float) -> np.ndarray:
    """Left, low, right and high (names, sides, 4) of every name on every side of its dot."""
    strong = np.array([request.strong for request in requests], dtype=bool)
    size = np.array(
        [(len(label_text(request)) * LETTER_WIDTH * width, LINE_HEIGHT * width) for request in requests]
    ).reshape(-1, 1, 2)
    offset = (LABEL_OFFSET * width * np.where(strong, 2, 1))[:, None, None]
    dots = np.array([(request.x, request.y) for request in requests]).reshape(-1, 1, 2)
    centre = dots + np.array(list(SIDE_OFFSETS.values())) * (size + 2 * offset)
    return np.concatenate([centre - size / 2, centre + size / 2], -1)


def count_covered_dots(boxes: np.ndarray, dots: np.ndarray) -> np.ndarray:
    """How many dots every box (names, sides, 4) covers; in parts, which fit a fast memory."""
    x, y = dots.T

    def count_chunk(chunk: np.ndarray) -> np.ndarray:
        left, low, right, high = np.moveaxis(chunk, -1, 0)[..., None]
        return ((x > left) & (x < right) & (y > low) & (y < high)).sum(-1)

    return np.concatenate([count_chunk(chunk) for chunk in np.array_split(boxes, len(boxes) // CHUNK_SIZE + 1)])


def _count_overlaps(boxes: np.ndarray, used_boxes: np.ndarray) -> np.ndarray:
    """How many boxes that are taken each of these (sides, 4) meets."""
    return ((used_boxes[:, :2] < boxes[:, None, 2:]) & (used_boxes[:, 2:] > boxes[:, None, :2])).all(-1).sum(-1)


def _is_inside(boxes: np.ndarray, spans: AxisSpans) -> np.ndarray:
    low, high = np.array(spans).T
    return ((low <= boxes[..., :2]) & (boxes[..., 2:] <= high)).all(-1)
