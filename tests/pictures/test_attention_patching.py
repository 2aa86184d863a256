"""Tests of the picture of `attention_patching`."""

import numpy as np
import pytest

from tests.pictures.cases import cells, example_picture, example_result, lines


def test_the_map_has_the_slope_of_every_head() -> None:
    assert np.array_equal(
        cells(example_picture("attention_patching").panels[1]).values, example_result("attention_patching").slope.values
    )


def test_the_loss_is_drawn_in_increasing_order_of_eta() -> None:
    curve = lines(example_picture("attention_patching").panels[0])
    assert list(curve["loss"].x) == [-0.1, 0.0, 0.1]
    assert curve["loss"].y == pytest.approx(example_result("attention_patching").loss.values[[1, 2, 0]])
