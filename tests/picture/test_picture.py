"""Tests of the values of a picture: ticks inside the range, palette contrast, map centres and line styles."""

import math

import numpy as np

from rheoscope.picture.picture import PALETTE, Cells, Line, log_ticks, ticks


def test_a_map_can_have_a_centre_other_than_0() -> None:
    cells = Cells(np.array([[0.0, 0.5, 1.0, math.nan]]), centre=0.5)
    assert cells.shades[0, :3].tolist() == [-1.0, 0.0, 1.0]
    assert math.isnan(cells.shades[0, 3])


def test_the_palette_has_contrast_on_a_light_and_on_a_dark_page() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for name, colour in PALETTE.items():
        assert 1.05 / (luminance(colour) + 0.05) >= 3, name
        assert (luminance(colour) + 0.05) / (luminance("#12161f") + 0.05) >= 3, name


def test_ticks_are_few_and_inside_the_range() -> None:
    for low, high in ((0.0, 1.0), (-3.2, 17.9), (0.013, 0.0131), (1e6, 7e6)):
        positions = ticks(low, high)
        assert 2 <= len(positions) <= 8
        assert all(low - 1e-9 <= value <= high * (1 + 1e-9) for value in positions)
    assert log_ticks(3.0, 8.0) == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


def test_a_line_with_one_value_is_drawn_as_a_dot() -> None:
    """A line through one point would be invisible, for example in an analysis of a single layer."""
    assert Line("residual", [0], [0.5]).style == "dots"
    assert Line("null", [0, 1, 2], [float("nan"), 0.5, float("nan")], style="dashed").style == "dots"
    assert Line("residual", [0, 1], [0.5, 0.4]).style == "solid"
    assert Line("nothing", [], []).style == "solid"
