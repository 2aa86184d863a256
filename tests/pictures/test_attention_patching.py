"""The picture of weights moved along the gradient of their scores."""

import numpy as np
import pytest

from tests.pictures.cases import cells, drawn, found, lines


def test_the_map_holds_the_slope_of_every_head() -> None:
    assert np.array_equal(cells(drawn("attention_patching").panels[1]).values, found("attention_patching").slope.values)


def test_the_curve_runs_from_left_to_right() -> None:
    curve = lines(drawn("attention_patching").panels[0])
    assert list(curve["loss"].x) == [-0.1, 0.0, 0.1]
    assert curve["loss"].y == pytest.approx(found("attention_patching").loss.values[[1, 2, 0]])
