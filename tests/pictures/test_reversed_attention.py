"""Tests of the picture of `reversed_attention`."""

import numpy as np
import pytest

from rheoscope.picture.picture import Cells
from tests.pictures.cases import example_picture, example_result


def test_maps_show_the_fields_and_frame_the_five_largest_norms() -> None:
    dataset = example_result("reversed_attention")
    heads, tokens = (panel.marks[0] for panel in example_picture("reversed_attention").panels)
    assert isinstance(heads, Cells)
    assert isinstance(tokens, Cells)
    assert np.array_equal(heads.values, dataset.norm.values)
    assert len(heads.marked) == 5
    assert np.unravel_index(dataset.norm.values.argmax(), dataset.norm.shape) in heads.marked
    assert tokens.values == pytest.approx(dataset.gradient_abs_sum.values.sum(1))
