"""Tests of the picture of `boundary`."""

import numpy as np

from tests.pictures.cases import example_result, lines, panel_with_title


def test_every_text_but_the_first_has_a_line_and_the_null_is_drawn() -> None:
    dataset = example_result("boundary")
    curves = lines(panel_with_title("boundary", "Angle after repeated application, radians"))
    assert set(curves) == {"A dog", "two different tokens"}
    assert np.allclose(curves["A dog"].y, dataset.final_angle.values[1])
    assert np.allclose(curves["two different tokens"].y, dataset.final_angle_null.values)
    assert set(lines(panel_with_title("boundary", "Spectral radius of the Jacobian"))) == {"The keys", "A dog"}
