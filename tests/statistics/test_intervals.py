"""Confidence intervals: their coverage, and equality with slow, obvious loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student_t

from rheoscope.statistics.intervals import (
    CHUNK_TOKENS,
    LONG_TAIL,
    MIN_ERROR_RATIO,
    RESAMPLES,
    TAIL,
    bootstrap_t_interval,
    describe_intervals,
    median_interval,
    student_half_width,
    student_interval,
    unit_name,
    unit_sizes,
)

F64 = torch.float64


def slow_bootstrap_t(sums: np.ndarray, sizes: np.ndarray, seed: int) -> tuple[float, float]:
    """One resample after the other."""
    n = len(sums)

    leverage = sizes / sizes.sum()

    def mean_and_error(s: np.ndarray, size: np.ndarray, leverage: np.ndarray) -> tuple[float, float]:
        mean = s.sum() / size.sum()
        return mean, math.sqrt((n - 1) / n * (((s - mean * size) / (1 - leverage)) ** 2).sum()) / size.sum()

    mean, error = mean_and_error(sums, sizes, leverage)
    t = []
    for units in np.random.default_rng(seed).integers(n, size=(RESAMPLES, n)):
        resampled_mean, resampled_error = mean_and_error(sums[units], sizes[units], leverage[units])
        t.append((resampled_mean - mean) / max(resampled_error, MIN_ERROR_RATIO * error))
    t.sort()
    short, long = round(TAIL * 2000), round(LONG_TAIL * 2000)
    low_longer = -t[short - 1] > t[-short]
    low_t, high_t = (t[long - 1], t[-short]) if low_longer else (t[short - 1], t[-long])
    return mean - error * high_t, mean - error * low_t


@pytest.mark.parametrize(("n", "seed"), [(4, 0), (7, 1), (30, 2)])
def test_bootstrap_t_equals_a_loop_over_resamples(n: int, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    sums, sizes = numbers.lognormal(size=(3, n)) * 5, numbers.integers(1, 9, size=n).astype(float)
    for unit_sizes_, slow_sizes in ((None, np.ones(n)), (torch.from_numpy(sizes), sizes)):
        low, high = bootstrap_t_interval(torch.from_numpy(sums), unit_sizes_, seed)
        for row in range(3):
            assert (float(low[row]), float(high[row])) == pytest.approx(slow_bootstrap_t(sums[row], slow_sizes, seed))


@settings(max_examples=30)
@given(st.integers(4, 30), st.integers(0, 99), st.floats(-5, 5), st.floats(0.1, 9))
def test_intervals_move_and_scale_with_the_numbers(n: int, seed: int, shift: float, factor: float) -> None:
    x = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=F64)
    for interval in (bootstrap_t_interval, student_interval, median_interval):
        expected = [shift + factor * float(end) for end in interval(x)]
        assert [float(end) for end in interval(shift + factor * x)] == pytest.approx(expected, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("n", [4, 12])
def test_coverage_of_normal_and_lognormal_means(n: int) -> None:
    x = torch.from_numpy(np.random.default_rng(n).normal(size=(1200, n)))
    for sample, mean, low_limit in ((x, 0.0, 0.93), (x.exp(), math.exp(0.5), 0.85 if n == 4 else 0.91)):
        low, high = bootstrap_t_interval(sample)
        assert low_limit <= float(((low <= mean) & (mean <= high)).double().mean()) <= 0.975


def test_equal_units_have_an_interval_of_width_zero() -> None:
    low, high = bootstrap_t_interval(torch.full((2, 5), 0.1, dtype=F64))
    assert low.tolist() == high.tolist() == pytest.approx([0.1, 0.1])
    assert all(float(end) == 0 for end in bootstrap_t_interval(torch.zeros(6)))


def test_one_different_unit_gives_finite_ends_and_nan_stays_nan() -> None:
    x = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 2.0, 3.0, math.nan]])
    low, high = bootstrap_t_interval(x)
    assert bool(low[0].isfinite() & high[0].isfinite() & low[1].isnan() & high[1].isnan())


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_units_have_no_interval_and_say_why(n: int) -> None:
    x = torch.arange(2.0 * n).reshape(2, n)
    for interval in (bootstrap_t_interval, student_interval, median_interval):
        assert all(bool(end.isnan().all()) and end.shape == (2,) for end in interval(x))
    assert describe_intervals("texts", n) == f"no interval: {n} texts, at least 4 are needed"
    assert "no interval" not in describe_intervals("texts", 4)


def test_the_number_of_threads_changes_no_bit() -> None:
    x = torch.from_numpy(np.random.default_rng(0).lognormal(size=(600, 37)))
    n_threads, results = torch.get_num_threads(), []
    for order in (slice(None), torch.arange(599, -1, -1)):  # another order splits the work in another way
        torch.set_num_threads(1 if isinstance(order, slice) else 2)
        results.append([end[order] for end in bootstrap_t_interval(x[order])])
    torch.set_num_threads(n_threads)
    assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))


@pytest.mark.parametrize("degrees_of_freedom", [3, 4, 19, 100, 101, 10**6])
def test_student_quantiles_equal_scipys(degrees_of_freedom: int) -> None:
    half_width = float(student_half_width(torch.tensor(1.0, dtype=F64), degrees_of_freedom))
    assert half_width == pytest.approx(student_t.ppf(0.975, degrees_of_freedom), rel=1e-5)


@pytest.mark.parametrize("n", [6, 8, 21])
def test_coverage_of_medians_and_infinite_values(n: int) -> None:
    x = torch.from_numpy(np.random.default_rng(n).normal(size=(4000, n)))
    low, high = median_interval(x)
    assert 0.93 <= float(((low <= 0) & (high >= 0)).double().mean()) <= 0.97
    with_infinity = torch.where(x == x.amax(-1, keepdim=True), torch.inf, x)
    infinite_low, infinite_high = median_interval(with_infinity)
    assert bool((infinite_low <= low + 1e-12).all() & (infinite_high >= high).all() & ~infinite_high.isnan().any())


def test_units_are_texts_or_chunks() -> None:
    assert unit_sizes([70, 3, 5, 9]) == [70, 3, 5, 9]
    assert unit_name([70, 3, 5, 9]) == "texts"
    assert unit_sizes([2 * CHUNK_TOKENS + 6, 3]) == [CHUNK_TOKENS, CHUNK_TOKENS, 6, 3]
    assert "chunks" in unit_name([70, 3])


def test_rounding_does_not_choose_the_longer_side() -> None:
    """Four units that are symmetric around their mean have equally long sides."""
    units = torch.tensor([-2.0, -1.0, 1.0, 2.0], dtype=torch.float64)
    expected = bootstrap_t_interval(units)
    for index in range(4):
        for change in (-1e-14, 1e-14):
            changed = units.clone()
            changed[index] += change
            assert torch.allclose(torch.stack(bootstrap_t_interval(changed)), torch.stack(expected), rtol=1e-9)
    assert float(expected[0] + expected[1]) == pytest.approx(0, abs=1e-9)
