"""Tests of maps of heads: every map shows the head types, and types of another model are refused."""

from typing import Any

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.picture.head_map import head_map
from tests.pictures.cases import cells, example_result


def test_the_tip_of_a_head_tells_its_type() -> None:
    types = example_result("head_types")
    panel = head_map("t", "about", np.zeros((6, 4)), types=types)
    kind = str(types.type.values[2, 1]).replace("_", "-")
    assert cells(panel).tips[2][1] == f"L2.H1: 0, {kind}"


@pytest.mark.parametrize("types", [[], {"type": 1}])
def test_types_of_another_model_are_refused(types: Any) -> None:
    with pytest.raises(rs.RheoscopeError, match=r"types must have 5 layers of 3 heads, got .*types=rs.head_types"):
        head_map("t", "about", np.zeros((5, 3)), types=example_result("head_types"))
    with pytest.raises(rs.RheoscopeError, match=r"got (list|dict)"):
        head_map("t", "about", np.zeros((6, 4)), types=types)
