"""Tests of label placement: labels do not overlap, stay inside the panel and are placed in the order of the requests."""

from dataclasses import replace

import numpy as np
import pytest

from rheoscope.picture.label_placement import CHUNK_SIZE, MAX_LABEL_CHARS, LabelRequest, place_labels
from tests.picture.reference_label_placement import label_box, place_sequentially

SPANS = (-1.0, 1.0), (-0.8, 0.8)


def random_requests(count: int, seed: int) -> tuple[np.ndarray, list[LabelRequest]]:
    dots = np.random.default_rng(seed).uniform(-0.9, 0.9, (count, 2)) * [1, 0.8]
    return dots, [LabelRequest(float(x), float(y), "w" * (1 + k % 20)) for k, (x, y) in enumerate(dots)]


@pytest.mark.parametrize(("count", "seed"), [(5, 0), (60, 1), (400, 2)])
def test_labels_do_not_overlap_and_stay_inside_the_panel(count: int, seed: int) -> None:
    dots, requests = random_requests(count, seed)
    labels = place_labels(requests, dots, SPANS, 25)
    assert 0 < len(labels) <= 25
    boxes = [label_box(LabelRequest(label.x, label.y, label.text), label.side, 2.0) for label in labels]
    for index, (left, low, right, high) in enumerate(boxes):
        assert SPANS[0][0] <= left < right <= SPANS[0][1]
        assert SPANS[1][0] <= low < high <= SPANS[1][1]
        for other in boxes[:index]:
            assert right <= other[0] or left >= other[2] or high <= other[1] or low >= other[3]
        assert sum(left < x < right and low < y < high for x, y in dots) <= 1


@pytest.mark.parametrize(
    ("count", "max_labels", "columns"), [(0, 5, 1), (1, 5, 1), (2 * CHUNK_SIZE + 3, 25, 2), (CHUNK_SIZE, 200, 1)]
)
def test_labels_equal_those_of_the_sequential_reference(count: int, max_labels: int, columns: int) -> None:
    dots, requests = random_requests(count, seed=count)
    requests = [replace(request, strong=index % 17 == 5) for index, request in enumerate(requests)]
    assert place_labels(requests, dots, SPANS, max_labels, columns) == place_sequentially(
        requests, dots, SPANS, max_labels, columns
    )


def test_the_first_request_has_a_label_and_so_has_every_strong_one() -> None:
    dots, requests = random_requests(60, 3)
    labels = place_labels(requests, dots, SPANS, 3)
    assert (labels[0].x, labels[0].y) == (requests[0].x, requests[0].y)
    strong_requests = [LabelRequest(0.0, 0.0, f"{k}", strong=True) for k in range(6)]
    assert [label.text for label in place_labels(strong_requests, np.zeros((60, 2)), SPANS, 9)] == [
        request.text for request in strong_requests
    ]


@pytest.mark.parametrize(("x", "side"), [(0.95, "left"), (-0.95, "right")])
def test_a_strong_label_at_the_edge_is_not_cut_off(x: float, side: str) -> None:
    requests = [LabelRequest(x, 0.0, "a long word", strong=True)]
    crowd = np.stack([np.linspace(-1, 1, 99), np.zeros(99)], 1)
    assert place_labels(requests, crowd, SPANS, 1)[0].side == side


def test_a_long_label_is_truncated() -> None:
    assert (
        place_labels([LabelRequest(0.0, 0.0, "x" * 40)], np.zeros((1, 2)), SPANS, 1)[0].text
        == "x" * (MAX_LABEL_CHARS - 1) + "…"
    )
