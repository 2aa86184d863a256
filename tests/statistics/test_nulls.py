"""Null distributions: Haar rotations, uniform p-values, q-values as in SciPy, intervals as by a slow reference."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtr
from scipy.stats import false_discovery_control
from torch import Generator, Tensor

from rheoscope.statistics.nulls import (
    TIE_WIDTH,
    moment_p_values,
    p_values,
    pooled_p_values,
    q_values,
    random_rotations,
    random_successors,
    student_two_sided_p,
    z_scores,
)

F64 = torch.float64


def test_rotations_are_orthogonal_and_uniform() -> None:
    Q = random_rotations(600, 5, torch.Generator().manual_seed(0))
    assert torch.allclose(Q @ Q.mT, torch.eye(5).expand_as(Q), atol=1e-5)
    assert float(Q.mean(0).abs().max()) < 0.1
    assert torch.allclose(Q.square().mean(0), torch.full((5, 5), 0.2), atol=0.05)


@pytest.mark.gpu
def test_a_gpu_has_the_rotations_of_the_cpu() -> None:
    on_cpu, on_gpu = (
        random_rotations(3, 64, torch.Generator().manual_seed(0), device=torch.device(name)) for name in ("cpu", "cuda")
    )
    assert on_gpu.is_cuda
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-4, atol=1e-4)


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), n=st.integers(1, 30))
def test_q_values_equal_scipys(seed: int, n: int) -> None:
    p = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=F64)
    assert np.allclose(q_values(p), false_discovery_control(p.numpy()))
    with_nan = torch.cat([p, torch.tensor([float("nan")], dtype=F64)])
    assert np.allclose(q_values(with_nan)[:-1], q_values(p))
    assert bool(q_values(with_nan)[-1].isnan())


@settings(max_examples=30)
@given(st.integers(3, 12), st.integers(1, 5), st.integers(0, 999))
def test_pooled_p_values_equal_a_loop_over_draws(draws: int, heads: int, seed: int) -> None:
    observed, *draw_list = torch.randn(1 + draws, heads, generator=Generator().manual_seed(seed), dtype=torch.float64)
    null_draws = torch.stack(draw_list)

    def t(value: Tensor, others: Tensor) -> Tensor:
        return ((value - others.mean(0)) / (others.std(0) * math.sqrt(1 + 1 / len(others)))).abs()

    null_t = torch.cat([t(null_draws[i], torch.cat([null_draws[:i], null_draws[i + 1 :]])) for i in range(draws)])
    result = pooled_p_values(observed, null_draws)
    for p, value in zip(result, t(observed, null_draws), strict=True):
        least, most = (1 + int((null_t >= value - width).sum()) for width in (0, TIE_WIDTH))
        assert least - 1e-6 <= float(p) * (len(null_t) + 1) <= most + 1e-6


def test_rounding_errors_do_not_move_pooled_p_values() -> None:
    """The number of threads moves the draws by rounding errors; a count of draws would jump."""
    draws = torch.randn(201, 24, generator=Generator().manual_seed(0), dtype=F64)
    noise = 1e-7 * torch.randn(201, 24, generator=Generator().manual_seed(1), dtype=F64)
    draws[0] = draws[1]  # a tie at every head
    before, after = (pooled_p_values(x[0], x[1:]) for x in (draws, draws + noise))
    assert float((before - after).abs().max()) < 1e-6


@pytest.mark.parametrize(
    ("sample", "limit"),
    [("normal", 0.0026), ("lognormal", 0.0035), ("poisson", 0.0026), ("exponential", 0.0026)],
)
def test_p_values_of_skewed_nulls_are_not_too_small(sample: str, limit: float) -> None:
    """At a nominal .0026 with 100 draws, Student's law rejects .024 of lognormal and .013 of Poisson numbers."""
    numbers = np.random.default_rng(0)
    shape = (101, 20000)
    x = {
        "normal": lambda: numbers.normal(size=shape),
        "lognormal": lambda: numbers.lognormal(size=shape),
        "poisson": lambda: numbers.poisson(0.5, size=shape).astype(float),
        "exponential": lambda: numbers.exponential(size=shape),
    }[sample]()
    draws = torch.from_numpy(x)
    assert float((moment_p_values(draws[0], draws[1:]) <= 0.0026).double().mean()) <= limit


def test_a_far_value_keeps_a_small_p_value() -> None:
    draws = torch.randn(100, generator=Generator().manual_seed(0), dtype=F64)
    assert float(moment_p_values(torch.tensor(8.0, dtype=F64), draws)) < 1e-5


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


@settings(max_examples=30)
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
