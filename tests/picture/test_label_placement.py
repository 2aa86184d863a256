"""Names beside dots: none covers another, none leaves the panel, the first come first."""

from dataclasses import replace

import numpy as np
import pytest

from rheoscope.picture.label_placement import CHUNK_SIZE, MAX_LABEL_CHARS, LabelRequest, place_labels
from tests.picture.label_placement_by_hand import box, by_hand

SPANS = (-1.0, 1.0), (-0.8, 0.8)


def scattered(count: int, seed: int) -> tuple[np.ndarray, list[LabelRequest]]:
    dots = np.random.default_rng(seed).uniform(-0.9, 0.9, (count, 2)) * [1, 0.8]
    return dots, [LabelRequest(float(x), float(y), "w" * (1 + k % 20)) for k, (x, y) in enumerate(dots)]


@pytest.mark.parametrize(("count", "seed"), [(5, 0), (60, 1), (400, 2)])
def test_no_name_covers_another_or_leaves_the_panel(count: int, seed: int) -> None:
    dots, names = scattered(count, seed)
    words = place_labels(names, dots, SPANS, 25)
    assert 0 < len(words) <= 25
    boxes = [box(LabelRequest(word.x, word.y, word.text), word.side, 2.0) for word in words]
    for at, (left, low, right, high) in enumerate(boxes):
        assert SPANS[0][0] <= left < right <= SPANS[0][1]
        assert SPANS[1][0] <= low < high <= SPANS[1][1]
        for other in boxes[:at]:
            assert right <= other[0] or left >= other[2] or high <= other[1] or low >= other[3]
        assert sum(left < x < right and low < y < high for x, y in dots) <= 1


@pytest.mark.parametrize(
    ("count", "most", "columns"), [(0, 5, 1), (1, 5, 1), (2 * CHUNK_SIZE + 3, 25, 2), (CHUNK_SIZE, 200, 1)]
)
def test_all_at_once_are_as_one_after_the_other(count: int, most: int, columns: int) -> None:
    dots, names = scattered(count, seed=count)
    names = [replace(name, strong=at % 17 == 5) for at, name in enumerate(names)]
    assert place_labels(names, dots, SPANS, most, columns) == by_hand(names, dots, SPANS, most, columns)


def test_who_comes_first_is_named_and_a_strong_one_always() -> None:
    dots, names = scattered(60, 3)
    words = place_labels(names, dots, SPANS, 3)
    assert (words[0].x, words[0].y) == (names[0].x, names[0].y)
    everyone = [LabelRequest(0.0, 0.0, f"{k}", strong=True) for k in range(6)]
    assert [word.text for word in place_labels(everyone, np.zeros((60, 2)), SPANS, 9)] == [
        name.text for name in everyone
    ]


def test_a_long_name_is_cut() -> None:
    assert (
        place_labels([LabelRequest(0.0, 0.0, "x" * 40)], np.zeros((1, 2)), SPANS, 1)[0].text
        == "x" * (MAX_LABEL_CHARS - 1) + "…"
    )
