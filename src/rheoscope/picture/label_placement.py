"""Placement of labels next to dots so that labels do not overlap. A label without room is omitted."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rheoscope.picture.picture import Label

AxisSpans = tuple[tuple[float, float], tuple[float, float]]
LETTER_WIDTH, LINE_HEIGHT = 0.0185, 0.039
"""Width of a letter and height of a line as fractions of a panel's width, for the renderer with the largest font (`draw/inline.py`)."""
LABEL_OFFSET = 0.018
"""Distance between a label and the centre of its dot, as a fraction of the panel's width."""
SIDE_OFFSETS = {"right": (0.5, 0.0), "left": (-0.5, 0.0), "above": (0.0, 0.5), "below": (0.0, -0.5)}
MAX_COVERED_DOTS = 1
"""How many dots a label may cover."""
MAX_LABEL_CHARS = 16
CHUNK_SIZE = 64
"""How many labels are compared with all dots at once."""


@dataclass(frozen=True)
class LabelRequest:
    """A label for the dot at (x, y). A `strong` label is emphasised and is placed even if it covers others."""

    x: float
    y: float
    text: str
    strong: bool = False


def place_labels(
    requests: Sequence[LabelRequest], dots: np.ndarray, spans: AxisSpans, max_labels: int, columns: int = 1
) -> list[Label]:
    """The first `max_labels` labels that have room, each on the side of its dot where it covers least.

    `dots` (n, 2) are the points that labels should not cover. `spans` are the ranges of x and y. The panel is `columns` wide
    and a unit has the same length on both axes.

    >>> dots = np.array([[0.0, 0.0], [0.01, 0.0], [0.5, 0.5]])
    >>> requests = [LabelRequest(0.0, 0.0, "sea"), LabelRequest(0.01, 0.0, "ocean"), LabelRequest(0.5, 0.5, "king")]
    >>> [(label.text, label.side) for label in place_labels(requests, dots, ((-1.0, 1.0), (-1.0, 1.0)), 3)]
    [('sea', 'right'), ('ocean', 'left'), ('king', 'right')]
    """
    labels: list[Label] = []
    used_boxes = np.empty((0, 4))
    boxes = label_boxes(requests, (spans[0][1] - spans[0][0]) / columns)
    n_covered, strong = count_covered_dots(boxes, dots), np.array([request.strong for request in requests], dtype=bool)
    is_outside = ~_is_inside(boxes, spans)
    has_room = ((n_covered <= MAX_COVERED_DOTS) & ~is_outside) | strong[:, None]
    for index in np.flatnonzero(has_room.any(1)).tolist():
        request, n_overlaps = requests[index], _count_overlaps(boxes[index], used_boxes)
        *_, side = min(
            (is_outside[index, side], n_overlaps[side], n_covered[index, side], side)
            for side in np.flatnonzero(has_room[index])
        )
        if len(labels) < max_labels and (request.strong or not n_overlaps[side]):
            labels.append(Label(request.x, request.y, label_text(request), tuple(SIDE_OFFSETS)[side], request.strong))
            used_boxes = np.vstack([used_boxes, boxes[index, side]])
    return labels


def label_text(request: LabelRequest) -> str:
    """The text of a label, shortened to `MAX_LABEL_CHARS`."""
    return request.text if len(request.text) <= MAX_LABEL_CHARS else request.text[: MAX_LABEL_CHARS - 1] + "…"


def label_boxes(requests: Sequence[LabelRequest], width: float) -> np.ndarray:
    """The box (left, low, right, high) of every label on every side of its dot (labels, sides, 4)."""
    strong = np.array([request.strong for request in requests], dtype=bool)
    size = np.array(
        [(len(label_text(request)) * LETTER_WIDTH * width, LINE_HEIGHT * width) for request in requests]
    ).reshape(-1, 1, 2)
    offset = (LABEL_OFFSET * width * np.where(strong, 2, 1))[:, None, None]
    dots = np.array([(request.x, request.y) for request in requests]).reshape(-1, 1, 2)
    centre = dots + np.array(list(SIDE_OFFSETS.values())) * (size + 2 * offset)
    return np.concatenate([centre - size / 2, centre + size / 2], -1)


def count_covered_dots(boxes: np.ndarray, dots: np.ndarray) -> np.ndarray:
    """How many dots each box (labels, sides, 4) covers. Chunks keep the comparison in the cache."""
    x, y = dots.T

    def count_chunk(chunk: np.ndarray) -> np.ndarray:
        left, low, right, high = np.moveaxis(chunk, -1, 0)[..., None]
        return ((x > left) & (x < right) & (y > low) & (y < high)).sum(-1)

    return np.concatenate([count_chunk(chunk) for chunk in np.array_split(boxes, len(boxes) // CHUNK_SIZE + 1)])


def _count_overlaps(boxes: np.ndarray, used_boxes: np.ndarray) -> np.ndarray:
    """How many used boxes each of these boxes (sides, 4) overlaps."""
    return ((used_boxes[:, :2] < boxes[:, None, 2:]) & (used_boxes[:, 2:] > boxes[:, None, :2])).all(-1).sum(-1)


def _is_inside(boxes: np.ndarray, spans: AxisSpans) -> np.ndarray:
    low, high = np.array(spans).T
    return ((low <= boxes[..., :2]) & (boxes[..., 2:] <= high)).all(-1)
