"""The card of a Trace: its tokens and their paths."""

from dataclasses import replace

import numpy as np

from rheoscope.report.thumbnail import MAX_TOKENS, path_panel, thumbnail
from tests.report.cases import TEXT, small


def test_dots_are_last_points_and_thin_lines_are_paths() -> None:
    trace = small().trace(TEXT)
    panel = path_panel(trace)
    assert panel is not None
    *hairs, dots = panel.marks
    assert len(hairs) == len(dots.x) == len(trace) - len(trace.massive_tokens())  # type: ignore[union-attr]
    for hair, x, y in zip(hairs, dots.x, dots.y, strict=True):  # type: ignore[union-attr]
        assert len(hair.x) == len(trace.steps)  # type: ignore[union-attr]
        assert (hair.x[-1], hair.y[-1]) == (x, y)  # type: ignore[union-attr]
    assert np.abs(np.stack([dots.x, dots.y])).max() <= 1 + 1e-5  # type: ignore[union-attr]


def test_a_long_text_is_truncated_with_a_note() -> None:
    trace = small().trace(TEXT * 6)
    assert len(trace) > MAX_TOKENS
    html = thumbnail(trace)
    assert html.count("<code") == MAX_TOKENS
    assert f"and {len(trace) - MAX_TOKENS} more" in html
    assert html.count("<circle") <= MAX_TOKENS


def test_nan_points_have_no_picture() -> None:
    trace = small().trace(TEXT)
    broken = replace(trace, points=trace.points * float("nan"))
    assert path_panel(broken) is None
    assert "<svg" not in thumbnail(broken)
    assert path_panel(small().trace("a")) is None
