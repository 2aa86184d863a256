"""A picture as values: round ticks, colours that can be read, maps with a centre."""

import math

import numpy as np

from rheoscope.picture.picture import PALETTE, Cells, Line, log_ticks, ticks


def test_a_map_may_have_another_centre_than_0() -> None:
    cells = Cells(np.array([[0.0, 0.5, 1.0, math.nan]]), centre=0.5)
    assert cells.shades[0, :3].tolist() == [-1.0, 0.0, 1.0]
    assert math.isnan(cells.shades[0, 3])


def test_palette_stands_off_white_and_off_a_dark_page() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for name, colour in PALETTE.items():
        assert 1.05 / (luminance(colour) + 0.05) >= 3, name
        assert (luminance(colour) + 0.05) / (luminance("#12161f") + 0.05) >= 3, name


def test_ticks_are_round_and_inside() -> None:
    for low, high in ((0.0, 1.0), (-3.2, 17.9), (0.013, 0.0131), (1e6, 7e6)):
        found = ticks(low, high)
        assert 2 <= len(found) <= 8
        assert all(low - 1e-9 <= value <= high * (1 + 1e-9) for value in found)
    assert log_ticks(3.0, 8.0) == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


def test_a_line_of_one_value_is_a_dot() -> None:
    """It would not be seen otherwise: a layer that is asked about alone."""
    assert Line("residual", [0], [0.5]).style == "dots"
    assert Line("null", [0, 1, 2], [float("nan"), 0.5, float("nan")], style="dashed").style == "dots"
    assert Line("residual", [0, 1], [0.5, 0.4]).style == "solid"
    assert Line("nothing", [], []).style == "solid"
