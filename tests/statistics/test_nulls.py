"""Null distributions: Haar rotations, uniform p-values, q-values as in SciPy, intervals as by a slow reference."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtr
from scipy.stats import false_discovery_control
from torch import Generator, Tensor

from rheoscope.statistics.nulls import (
    CHUNK_TOKENS,
    RESAMPLES,
    bootstrap_interval,
    bootstrap_means,
    bootstrap_unit_sizes,
    p_values,
    pooled_p_values,
    q_values,
    random_rotations,
    random_successors,
    student_two_sided_p,
    unit_name,
    z_scores,
)

F64 = torch.float64


def test_rotations_are_orthogonal_and_uniform() -> None:
    Q = random_rotations(600, 5, torch.Generator().manual_seed(0))
    assert torch.allclose(Q @ Q.mT, torch.eye(5).expand_as(Q), atol=1e-5)
    assert float(Q.mean(0).abs().max()) < 0.1
    assert torch.allclose(Q.square().mean(0), torch.full((5, 5), 0.2), atol=0.05)


@given(seed=st.integers(0, 1000), n=st.integers(1, 30))
def test_q_values_equal_scipys(seed: int, n: int) -> None:
    p = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=F64)
    assert np.allclose(q_values(p), false_discovery_control(p.numpy()))
    with_nan = torch.cat([p, torch.tensor([float("nan")], dtype=F64)])
    assert np.allclose(q_values(with_nan)[:-1], q_values(p))
    assert bool(q_values(with_nan)[-1].isnan())


def test_bootstrap_interval_equals_a_loop_over_resamples() -> None:
    sizes = [3, 5, 2, 9, 4, 6]
    sums = torch.randn(2, 3, 6, generator=Generator().manual_seed(1), dtype=F64) * torch.tensor(sizes)
    low, high = bootstrap_interval(sums, sizes, Generator().manual_seed(7))
    samples = torch.randint(6, (RESAMPLES, 6), generator=Generator().manual_seed(7))
    means = np.array([[float(sums[1, 2, u].sum()) / sum(sizes[unit] for unit in u) for u in samples]])
    assert [float(low[1, 2]), float(high[1, 2])] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=1e-12)


def test_all_rows_have_the_same_resamples() -> None:
    sums = torch.randn(8, generator=Generator().manual_seed(1), dtype=F64)
    result = bootstrap_means(torch.stack([sums, 2 * sums]), [1] * 8, Generator().manual_seed(0))
    assert torch.allclose(2 * result[0], result[1])


def test_units_are_texts_or_chunks() -> None:
    assert bootstrap_unit_sizes([70, 3, 5, 9, 8]) == [70, 3, 5, 9, 8]
    assert unit_name([70, 3, 5, 9, 8]) == "texts"
    assert bootstrap_unit_sizes([2 * CHUNK_TOKENS + 6, 3]) == [CHUNK_TOKENS, CHUNK_TOKENS, 6, 3]
    assert "chunks" in unit_name([70, 3])
    sums = torch.arange(8.0, dtype=F64).reshape(2, 4)
    low, high = bootstrap_interval(sums, bootstrap_unit_sizes([70, 3]), Generator())
    assert low.isnan().all()
    assert high.isnan().all()


def test_bootstrap_intervals_have_their_nominal_coverage() -> None:
    """About 95 % of the intervals of a mean of normal numbers contain the true mean."""
    generator, n_covered = Generator().manual_seed(0), 0
    for _ in range(200):
        low, high = bootstrap_interval(torch.randn(1, 60, generator=generator, dtype=F64), [1] * 60, generator)
        n_covered += bool(low[0] <= 0 <= high[0])
    assert 0.88 <= n_covered / 200 <= 0.99


@given(st.integers(3, 12), st.integers(1, 5), st.integers(0, 999))
def test_pooled_p_values_equal_a_loop_over_draws(draws: int, heads: int, seed: int) -> None:
    observed, *draw_list = torch.randn(1 + draws, heads, generator=Generator().manual_seed(seed), dtype=torch.float64)
    null_draws = torch.stack(draw_list)

    def t(value: Tensor, others: Tensor) -> Tensor:
        return ((value - others.mean(0)) / (others.std(0) * math.sqrt(1 + 1 / len(others)))).abs()

    null_t = torch.cat([t(null_draws[i], torch.cat([null_draws[:i], null_draws[i + 1 :]])) for i in range(draws)])
    expected = torch.stack([(1 + (null_t >= value).sum()) / (len(null_t) + 1) for value in t(observed, null_draws)])
    assert torch.allclose(pooled_p_values(observed, null_draws), expected.double())


def test_null_p_values_are_uniform_and_above_their_floor() -> None:
    draws = torch.randn(21, 4000, generator=Generator().manual_seed(3), dtype=torch.float64)
    for p, floor in ((p_values(draws[0], draws[1:]), 1 / 21), (pooled_p_values(draws[0], draws[1:]), 1 / 80001)):
        assert abs(float((p <= 0.05).double().mean()) - 0.05) < 0.012
        assert float(p.min()) >= floor


def test_draws_without_spread_have_no_p_value() -> None:
    observed, null_draws = torch.tensor([1.0, 1.0]), torch.stack([torch.zeros(9), torch.randn(9)], 1)
    assert pooled_p_values(observed, null_draws).isnan().tolist() == [True, False]


@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_random_successors_form_a_path_between_fixed_ends(n: int) -> None:
    for successors in random_successors(n, 20, seed=n).tolist():
        path = [0]
        while path[-1] != n - 1:
            path.append(successors[path[-1]])
        assert sorted(path) == list(range(n))
    assert random_successors(n, 0, seed=0).shape == (0, n - 1)
    samples = random_successors(9, 300, seed=0)[:, 3].tolist()
    assert set(samples) == {1, 2, 4, 5, 6, 7, 8}


def test_z_is_nan_without_spread_or_null() -> None:
    z = z_scores(torch.tensor([3.0, 3.0, 1.0]), torch.ones(3), torch.tensor([0.5, 0.0, math.nan]))
    assert z[0] == 4
    assert z[1:].isnan().all()


@given(st.floats(-30, 30), st.integers(1, 200))
def test_student_p_values_equal_scipys(t: float, degrees_of_freedom: int) -> None:
    exact = 2 * stdtr(degrees_of_freedom, -abs(t))
    assert float(student_two_sided_p(torch.tensor(t, dtype=torch.float64), degrees_of_freedom)) == pytest.approx(
        exact, rel=1e-7, abs=0
    )


def test_extreme_p_values_keep_their_digits() -> None:
    t = torch.tensor([80.0, -1e6, math.inf, math.nan, 0.0], dtype=torch.float64)
    result = student_two_sided_p(t, 11)
    assert result[:2].tolist() == pytest.approx([2 * stdtr(11, -80.0), 2 * stdtr(11, -1e6)], rel=1e-9)
    assert result[1] > 0
    assert result[3].isnan()
    assert (float(result[2]), float(result[4])) == (pytest.approx(0, abs=1e-150), 1)
