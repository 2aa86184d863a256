"""What is typed behind options: heads, lists of numbers, tokens."""

import pytest

import rheoscope as rs
from rheoscope.report.typed import heads_of, numbers_of
from tests.report.cases import model


@pytest.mark.parametrize("typed", ["a", "5.", "5.1,", "5-1", "5.1.2", "", "5", "L", "H3"])
def test_heads_that_cannot_be_read(typed: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=r"heads are typed as layer.head, got .*; type --heads 5.1,3.2"):
        heads_of(typed, model().view)


def test_heads_and_layers_can_be_mixed() -> None:
    assert heads_of("1.2, L3", model().view) == [(1, 2), (3, 0), (3, 1), (3, 2), (3, 3)]
    assert heads_of(None, model().view) is None
    with pytest.raises(rs.RheoscopeError, match="there is no layer 9"):
        heads_of("L9", model().view)


@pytest.mark.parametrize("typed", ["", "1,", "a", "1;2", "1.5"])
def test_numbers_that_cannot_be_read(typed: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=r"--layers takes numbers between commas, got .*; type --layers 1,4"):
        numbers_of(typed, int, "layers")
