"""The picture of whether the first tokens decide."""

import numpy as np

from tests.pictures.cases import found, lines, titled


def test_boundaries_have_a_line_a_text_beside_two_different_tokens() -> None:
    dataset, there = found("boundary"), lines(titled("boundary", "Settled elsewhere, radians"))
    assert set(there) == {"A dog", "two different tokens"}
    assert np.allclose(there["A dog"].y, dataset.final_angle.values[1])
    assert set(lines(titled("boundary", "Radius of the Jacobian"))) == {"The keys", "A dog"}
