"""Heads as they are asked for: a list of pairs, or all; everything else is refused in one line that says what to type."""

from typing import Any

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.covers.head_selection import format_heads, select_heads
from tests.cases import double


def test_heads_as_they_are_asked_for() -> None:
    view = double("llama").view
    assert select_heads(view, None) == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}
    assert select_heads(view, view.head_indices(1)) == {1: [0, 1, 2, 3]}
    assert select_heads(view, [(1, 2), (0, 3), (1, 0), (1, 2)]) == {0: [3], 1: [0, 2]}
    assert select_heads(view, [tuple(np.array([1, 2]))]) == {1: [2]}
    assert format_heads(select_heads(view, [(1, 2), (0, 3)])) == "L0.H3 L1.H2"


@pytest.mark.parametrize(
    ("heads", "said"),
    [
        ([(7, 0)], "there is no layer 7"),
        ([(0, 9)], "there is no head 9 in layer 0"),
        ([], "no head to change; type heads="),
        (
            1,
            r"list of \(layer, head\), got 1; type heads=\[\(1, 0\), \(1, 1\)\], or heads=model.view.head_indices\(1\)",
        ),
        ([1, 2], r"list of \(layer, head\), got \[1, 2\]; type"),
        ([(1, 2, 3)], r"list of \(layer, head\), got"),
        ("L1.H2", r"list of \(layer, head\), got 'L1.H2'; type"),
        ([("1", "2")], r"list of \(layer, head\), got"),
    ],
)
def test_what_is_no_list_of_heads_is_refused_in_one_line(heads: Any, said: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=said) as error:
        select_heads(double("llama").view, heads)
    assert "\n" not in str(error.value)
