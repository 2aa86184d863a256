"""Tests of the setting `heads`: pairs, None, and refused values."""

from typing import Any

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.covers.head_selection import format_heads, select_heads
from tests.cases import double


def test_pairs_and_none_select_heads_by_layer() -> None:
    view = double("llama").view
    assert select_heads(view, None) == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}
    assert select_heads(view, view.head_indices(1)) == {1: [0, 1, 2, 3]}
    assert select_heads(view, [(1, 2), (0, 3), (1, 0), (1, 2)]) == {0: [3], 1: [0, 2]}
    assert select_heads(view, [tuple(np.array([1, 2]))]) == {1: [2]}
    assert format_heads(select_heads(view, [(1, 2), (0, 3)])) == "L0.H3 L1.H2"


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([(7, 0)], "there is no layer 7"),
        ([(0, 9)], "there is no head 9 in layer 0"),
        ([], r"heads is empty, expected at least one \(layer, head\); type heads=\[\(5, 1\)\]"),
        (1, r"list of \(layer, head\), got 1; type heads=model.view.head_indices\(1\)"),
        ([1, 2], r"list of \(layer, head\), got \[1, 2\]; type"),
        ([(1, 2, 3)], r"list of \(layer, head\), got"),
        ("L1.H2", r"list of \(layer, head\), got 'L1.H2'; type"),
        ([("1", "2")], r"list of \(layer, head\), got"),
    ],
)
def test_invalid_heads_are_refused(heads: Any, message: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=message) as error:
        select_heads(double("llama").view, heads)
    assert "\n" not in str(error.value)
