"""Tests of the picture of `boundary`."""

import numpy as np

from rheoscope.covers.boundary.picture import LEGEND_LETTERS, picture
from tests.pictures.cases import example_result, lines, panel_with_title


def test_every_text_but_the_first_has_a_line_and_the_null_is_drawn() -> None:
    dataset = example_result("boundary")
    curves = lines(panel_with_title("boundary", "Angle after repeated application, radians"))
    assert set(curves) == {"A dog", "two different tokens"}
    assert np.allclose(curves["A dog"].y, dataset.final_angle.values[1])
    assert np.allclose(curves["two different tokens"].y, dataset.final_angle_null.values)
    assert set(lines(panel_with_title("boundary", "Spectral radius of the Jacobian"))) == {"The keys", "A dog"}


def test_long_prefixes_are_shortened_between_words_in_the_legend() -> None:
    prefix = "A dog that nobody had ever seen in this village ran across the old bridge"
    dataset = example_result("boundary").assign_coords(boundary=("text", ["The keys", prefix]))
    names = set(lines(next(panel for panel in picture(dataset).panels if panel.title.startswith("Spectral"))))
    (shown,) = names - {"The keys"}
    assert len(shown) <= LEGEND_LETTERS
    assert shown.endswith(" …")
    assert prefix.startswith(shown.removesuffix("…"))
