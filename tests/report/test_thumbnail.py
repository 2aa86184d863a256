"""A Trace on a card: its tokens, and their ways on one plane."""

from dataclasses import replace

import numpy as np

from rheoscope.report.thumbnail import MOST, panel, thumbnail
from tests.report.cases import TEXT, small


def test_dots_are_the_last_points_and_hairs_the_ways_to_them() -> None:
    trace = small().trace(TEXT)
    drawn = panel(trace)
    assert drawn is not None
    *hairs, dots = drawn.marks
    assert len(hairs) == len(dots.x) == len(trace) - len(trace.massive())  # type: ignore[union-attr]
    for hair, x, y in zip(hairs, dots.x, dots.y, strict=True):  # type: ignore[union-attr]
        assert len(hair.x) == len(trace.steps)  # type: ignore[union-attr]
        assert (hair.x[-1], hair.y[-1]) == (x, y)  # type: ignore[union-attr]
    assert np.abs(np.stack([dots.x, dots.y])).max() <= 1 + 1e-5  # type: ignore[union-attr]


def test_a_long_text_shows_its_beginning_and_says_so() -> None:
    trace = small().trace(TEXT * 5)
    assert len(trace) > MOST
    told = thumbnail(trace)
    assert told.count("<code") == MOST
    assert f"and {len(trace) - MOST} more" in told
    assert told.count("<circle") <= MOST


def test_points_that_are_no_numbers_have_no_picture() -> None:
    trace = small().trace(TEXT)
    broken = replace(trace, points=trace.points * float("nan"))
    assert panel(broken) is None
    assert "<svg" not in thumbnail(broken)
    assert panel(small().trace("a")) is None
