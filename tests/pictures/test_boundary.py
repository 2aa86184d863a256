"""The picture of boundary."""

import numpy as np

from tests.pictures.cases import found, lines, titled


def test_every_text_but_the_first_has_a_line_and_the_null_is_drawn() -> None:
    dataset = found("boundary")
    curves = lines(titled("boundary", "Angle after repeated application, radians"))
    assert set(curves) == {"A dog", "two different tokens"}
    assert np.allclose(curves["A dog"].y, dataset.final_angle.values[1])
    assert np.allclose(curves["two different tokens"].y, dataset.final_angle_null.values)
    assert set(lines(titled("boundary", "Spectral radius of the Jacobian"))) == {"The keys", "A dog"}
