"""A Trace on a card: its tokens, and their ways on one plane."""

from dataclasses import replace

import numpy as np

from rheoscope.report.thumbnail import MAX_TOKENS, path_panel, thumbnail
from tests.report.cases import TEXT, small


def test_dots_are_the_last_points_and_hairs_the_ways_to_them() -> None:
    trace = small().trace(TEXT)
    drawn = path_panel(trace)
    assert drawn is not None
    *hairs, dots = drawn.marks
    assert len(hairs) == len(dots.x) == len(trace) - len(trace.massive_tokens())  # type: ignore[union-attr]
    for hair, x, y in zip(hairs, dots.x, dots.y, strict=True):  # type: ignore[union-attr]
        assert len(hair.x) == len(trace.steps)  # type: ignore[union-attr]
        assert (hair.x[-1], hair.y[-1]) == (x, y)  # type: ignore[union-attr]
    assert np.abs(np.stack([dots.x, dots.y])).max() <= 1 + 1e-5  # type: ignore[union-attr]


def test_a_long_text_shows_its_beginning_and_says_so() -> None:
    trace = small().trace(TEXT * 5)
    assert len(trace) > MAX_TOKENS
    told = thumbnail(trace)
    assert told.count("<code") == MAX_TOKENS
    assert f"and {len(trace) - MAX_TOKENS} more" in told
    assert told.count("<circle") <= MAX_TOKENS


def test_points_that_are_no_numbers_have_no_picture() -> None:
    trace = small().trace(TEXT)
    broken = replace(trace, points=trace.points * float("nan"))
    assert path_panel(broken) is None
    assert "<svg" not in thumbnail(broken)
    assert path_panel(small().trace("a")) is None
