"""Tests of the particle systems against loops, their symmetries, and the integrator."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rheoscope.attention.mask import Causal
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.attention.zoo import mechanism
from rheoscope.theory.particles import (
    crossing_time,
    dot_product_attention,
    evolve,
    free_velocity,
    integrate,
    normalise,
    project_to_tangent,
    rescaled_velocity,
    sphere_velocity,
    standard_normal,
    time_grid,
    unnormalised_velocity,
)

SEEDS = range(2)


def slow_velocity(x: Tensor, V: Tensor, beta: float, sphere: bool, normalised: bool, causal: bool = False) -> Tensor:
    """x_i' by loops over particles."""
    out = torch.zeros_like(x)
    for i in range(len(x)):
        visible = range(i + 1 if causal else len(x))
        e = [math.exp(beta * float(x[i] @ x[j])) for j in visible]
        total = sum(e) if normalised else len(x)
        y = sum((e[j] / total * (x[j] @ V) for j in visible), torch.zeros_like(x[i]))
        out[i] = y - (x[i] @ y) * x[i] if sphere else y
    return out


@pytest.mark.parametrize("seed", SEEDS)
def test_velocities_equal_loops(seed: int) -> None:
    x, V, beta = normalise(standard_normal(seed, 7, 3)), standard_normal(seed + 100, 3, 3), 1.7
    eye = torch.eye(3, dtype=torch.float64)
    masked = replace(dot_product_attention(beta), mask=Causal())
    assert torch.allclose(
        sphere_velocity(dot_product_attention(beta), V)(0.0, x), slow_velocity(x, V, beta, True, True)
    )
    assert torch.allclose(sphere_velocity(dot_product_attention(beta))(0.0, x), slow_velocity(x, eye, beta, True, True))
    assert torch.allclose(unnormalised_velocity(beta, V)(0.0, x), slow_velocity(x, V, beta, True, False))
    assert torch.allclose(free_velocity(dot_product_attention(beta), V)(0.0, x), slow_velocity(x, V, beta, False, True))
    assert torch.allclose(sphere_velocity(masked, V)(0.0, x), slow_velocity(x, V, beta, True, True, causal=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_rescaled_flow_equals_free_flow_times_the_exponential(seed: int) -> None:
    x, V, times = 0.5 * standard_normal(seed, 6, 2), 0.4 * standard_normal(seed + 50, 2, 2), time_grid(1.0, 40)
    expected = evolve(free_velocity(dot_product_attention(1.0), V), x, times)[-1] @ torch.matrix_exp(-V)
    assert torch.allclose(evolve(rescaled_velocity(dot_product_attention(1.0), V), x, times)[-1], expected, atol=1e-7)


@pytest.mark.parametrize("seed", SEEDS)
def test_particles_stay_on_the_sphere_and_a_single_one_rests(seed: int) -> None:
    x = normalise(standard_normal(seed, 9, 4))
    for velocity in (
        sphere_velocity(dot_product_attention(3.0), standard_normal(seed, 4, 4)),
        unnormalised_velocity(1.0),
    ):
        assert (velocity(0.0, x) * x).sum(-1).abs().max() < 1e-12
        assert (evolve(velocity, x, time_grid(2.0, 20), normalise).norm(dim=-1) - 1).abs().max() < 1e-12
    assert sphere_velocity(dot_product_attention(3.0))(0.0, x[:1]).abs().max() < 1e-15
    assert torch.allclose(
        evolve(sphere_velocity(dot_product_attention(3.0)), x[:1], time_grid(5.0, 10), normalise),
        x[:1].expand(11, -1, -1),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_rotations_rotate_the_flow_and_permutations_permute_it(seed: int) -> None:
    x, Q = normalise(standard_normal(seed, 8, 3)), torch.linalg.qr(standard_normal(seed + 9, 3, 3))[0]
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    for rule in (dot_product_attention(2.0), mechanism("metric", sigma=0.7), mechanism("sinkhorn", rounds=30)):
        end = evolve(sphere_velocity(rule), x, time_grid(1.0, 5), normalise)[-1]
        assert torch.allclose(evolve(sphere_velocity(rule), x @ Q, time_grid(1.0, 5), normalise)[-1], end @ Q)
        assert torch.allclose(evolve(sphere_velocity(rule), x[order], time_grid(1.0, 5), normalise)[-1], end[order])


def test_mean_follows_exp_V_under_sinkhorn_but_not_under_softmax() -> None:
    x, V, times = standard_normal(0, 12, 3) + 0.5, 0.3 * standard_normal(1, 3, 3), time_grid(1.0, 8)
    expected_mean = x.mean(0) @ torch.matrix_exp(V)
    doubly_stochastic = replace(dot_product_attention(0.5), normaliser=Sinkhorn(200))
    assert torch.allclose(evolve(free_velocity(doubly_stochastic, V), x, times)[-1].mean(0), expected_mean, atol=1e-5)
    assert not torch.allclose(
        evolve(free_velocity(dot_product_attention(0.5), V), x, times)[-1].mean(0), expected_mean, atol=1e-2
    )


def test_halving_the_step_divides_the_error_by_sixteen() -> None:
    start = torch.ones(1, 1, dtype=torch.float64)
    error = [abs(float(evolve(lambda t, x: t * x, start, time_grid(2.0, n))[-1]) - math.exp(2)) for n in (20, 40)]
    assert error[0] / error[1] == pytest.approx(16, rel=0.1)


def test_evolve_returns_every_step_of_uneven_times() -> None:
    times = torch.tensor([0.0, 0.1, 0.3, 0.31], dtype=torch.float64)
    path = evolve(lambda t, x: x, torch.ones(1, 1, dtype=torch.float64), times)
    assert torch.allclose(path[:, 0, 0], times.exp(), atol=1e-5)


def test_project_to_tangent_equals_a_loop() -> None:
    x, y = normalise(standard_normal(0, 5, 3)), standard_normal(1, 5, 3)
    assert torch.allclose(project_to_tangent(x, y), torch.stack([b - (a @ b) * a for a, b in zip(x, y, strict=True)]))


def test_crossing_time_interpolates_between_times() -> None:
    times = time_grid(4.0, 4)
    assert crossing_time(times, 2 * times, 3.0) == 1.5
    assert crossing_time(times, times + 5, 3.0) == 0.0
    assert math.isnan(crossing_time(times, times, 9.0))


def test_quadrature_is_exact_for_polynomials() -> None:
    assert integrate(lambda x: 3 * x**2 + 1, -1.0, 2.0, n_nodes=5) == pytest.approx(12)
    assert integrate(torch.exp, 0.0, 1.0) == pytest.approx(math.e - 1, rel=1e-12)
