"""Exact sums equal those of fractions, in any order and any split."""

import random
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rheoscope.statistics.exact_sums import UNIT, exact_sums, mean_and_sd

NUMBERS = arrays(np.float32, st.integers(0, 12), elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@given(NUMBERS)
def test_sums_equal_those_of_fractions(x: np.ndarray) -> None:
    total, squares = exact_sums(x, np.zeros(len(x), int), 1)
    exact = [Fraction(float(number)) for number in x]
    assert total[0] * UNIT == sum(exact)
    assert squares[0] * UNIT**2 == sum(number * number for number in exact)


@given(NUMBERS, st.integers(0, 12), st.randoms(use_true_random=False))
def test_order_and_split_change_no_bit(x: np.ndarray, split: int, draw: random.Random) -> None:
    expected, cells = exact_sums(x, np.arange(len(x)) % 2, 2), np.arange(len(x)) % 2
    order = draw.sample(range(len(x)), len(x))
    parts = [exact_sums(x[part], cells[part], 2) for part in (order[:split], order[split:])]
    assert [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(*parts, strict=True)] == list(expected)


def test_many_large_numbers_do_not_overflow() -> None:
    x = np.full(100_000, np.finfo(np.float32).max)
    total, squares = exact_sums(x, np.zeros(len(x), int), 1)
    assert total[0] * UNIT == len(x) * Fraction(float(x[0]))
    assert squares[0] * UNIT**2 == len(x) * Fraction(float(x[0])) ** 2


def test_mean_and_sd_equal_numpys() -> None:
    x = (np.random.default_rng(0).standard_normal(50) + 1000).astype(np.float32)
    total, squares = exact_sums(x, np.zeros(50, int), 1)
    np.testing.assert_allclose(
        mean_and_sd(total[0], squares[0], 50), (x.astype(float).mean(), x.astype(float).std(ddof=1))
    )
    assert mean_and_sd(0, 0, 0) != mean_and_sd(0, 0, 0)
    tiny = exact_sums(np.float32([1e-44, 3e-44]), np.zeros(2, int), 1)
    assert 0 < mean_and_sd(tiny[0][0], tiny[1][0], 2)[1] < 3e-44
