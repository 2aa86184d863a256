"""Tests of the picture of `head_types`."""

import numpy as np

from rheoscope.picture.head_map import TYPE_COLOURS
from rheoscope.picture.picture import Line, Shape
from tests.pictures.cases import example_picture, example_result


def test_bars_and_dots_count_the_heads_of_every_type() -> None:
    types = example_result("head_types")
    panel = example_picture("head_types").panels[0]
    shapes = [mark for mark in panel.marks if isinstance(mark, Shape)]
    for kind in (*TYPE_COLOURS, "mixed"):
        height = sum(max(mark.y) - min(mark.y) for mark in shapes if mark.name == kind.replace("_", "-"))
        assert height == (types.type.values == kind).sum()
    assert set(panel.legend) == {str(kind).replace("_", "-") for kind in np.unique(types.type.values)}
    local_map = example_picture("head_types").panels[5]
    dots = [mark for mark in local_map.marks if isinstance(mark, Line)]
    assert sum(len(mark.x) for mark in dots) == (types.type.values == "local").sum()
