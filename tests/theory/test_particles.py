"""The systems equal slow ones, obey their laws, and the stepper is of fourth order."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rheoscope.attention.mask import Causal
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.attention.zoo import mechanism
from rheoscope.theory.particles import (
    crossing,
    dot,
    drawn,
    evolve,
    in_space,
    integral,
    on_sphere,
    rescaled,
    tangent,
    unit,
    unnormalised,
    until,
)

SEEDS = range(4)


def slow(x: Tensor, V: Tensor, beta: float, sphere: bool, normalised: bool, causal: bool = False) -> Tensor:
    """x_i' by loops over particles."""
    out = torch.zeros_like(x)
    for i in range(len(x)):
        seen = range(i + 1 if causal else len(x))
        e = [math.exp(beta * float(x[i] @ x[j])) for j in seen]
        total = sum(e) if normalised else len(x)
        y = sum((e[j] / total * (x[j] @ V) for j in seen), torch.zeros_like(x[i]))
        out[i] = y - (x[i] @ y) * x[i] if sphere else y
    return out


@pytest.mark.parametrize("seed", SEEDS)
def test_systems_equal_loops(seed: int) -> None:
    x, V, beta = unit(drawn(seed, 7, 3)), drawn(seed + 100, 3, 3), 1.7
    eye = torch.eye(3, dtype=torch.float64)
    masked = replace(dot(beta), mask=Causal())
    assert torch.allclose(on_sphere(dot(beta), V)(0.0, x), slow(x, V, beta, True, True))
    assert torch.allclose(on_sphere(dot(beta))(0.0, x), slow(x, eye, beta, True, True))
    assert torch.allclose(unnormalised(beta, V)(0.0, x), slow(x, V, beta, True, False))
    assert torch.allclose(in_space(dot(beta), V)(0.0, x), slow(x, V, beta, False, True))
    assert torch.allclose(on_sphere(masked, V)(0.0, x), slow(x, V, beta, True, True, causal=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_rescaled_is_free_space_seen_through_the_exponential(seed: int) -> None:
    x, V, times = 0.5 * drawn(seed, 6, 2), 0.4 * drawn(seed + 50, 2, 2), until(1.0, 40)
    there = evolve(in_space(dot(1.0), V), x, times)[-1] @ torch.matrix_exp(-V)
    assert torch.allclose(evolve(rescaled(dot(1.0), V), x, times)[-1], there, atol=1e-7)


@pytest.mark.parametrize("seed", SEEDS)
def test_particles_stay_on_the_sphere_and_one_stays_where_it_is(seed: int) -> None:
    x = unit(drawn(seed, 9, 4))
    for velocity in (on_sphere(dot(3.0), drawn(seed, 4, 4)), unnormalised(1.0)):
        assert (velocity(0.0, x) * x).sum(-1).abs().max() < 1e-12
        assert (evolve(velocity, x, until(2.0, 20), unit).norm(dim=-1) - 1).abs().max() < 1e-12
    assert on_sphere(dot(3.0))(0.0, x[:1]).abs().max() < 1e-15
    assert torch.allclose(evolve(on_sphere(dot(3.0)), x[:1], until(5.0, 10), unit), x[:1].expand(11, -1, -1))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_turn_turns_the_flow_and_a_permutation_permutes_it(seed: int) -> None:
    x, Q = unit(drawn(seed, 8, 3)), torch.linalg.qr(drawn(seed + 9, 3, 3))[0]
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    for rule in (dot(2.0), mechanism("metric", sigma=0.7), mechanism("sinkhorn", rounds=30)):
        end = evolve(on_sphere(rule), x, until(1.0, 5), unit)[-1]
        assert torch.allclose(evolve(on_sphere(rule), x @ Q, until(1.0, 5), unit)[-1], end @ Q)
        assert torch.allclose(evolve(on_sphere(rule), x[order], until(1.0, 5), unit)[-1], end[order])


def test_the_mean_obeys_v_alone_under_sinkhorn_and_not_under_softmax() -> None:
    x, V, times = drawn(0, 12, 3) + 0.5, 0.3 * drawn(1, 3, 3), until(1.0, 8)
    due = x.mean(0) @ torch.matrix_exp(V)
    equal = replace(dot(0.5), normaliser=Sinkhorn(200))
    assert torch.allclose(evolve(in_space(equal, V), x, times)[-1].mean(0), due, atol=1e-5)
    assert not torch.allclose(evolve(in_space(dot(0.5), V), x, times)[-1].mean(0), due, atol=1e-2)


def test_halving_the_step_divides_the_error_by_sixteen() -> None:
    start = torch.ones(1, 1, dtype=torch.float64)
    error = [abs(float(evolve(lambda t, x: t * x, start, until(2.0, n))[-1]) - math.exp(2)) for n in (20, 40)]
    assert error[0] / error[1] == pytest.approx(16, rel=0.1)


def test_times_may_be_uneven_and_every_step_is_kept() -> None:
    times = torch.tensor([0.0, 0.1, 0.3, 0.31], dtype=torch.float64)
    path = evolve(lambda t, x: x, torch.ones(1, 1, dtype=torch.float64), times)
    assert torch.allclose(path[:, 0, 0], times.exp(), atol=1e-5)


def test_tangent_is_what_is_left_of_the_sphere() -> None:
    x, y = unit(drawn(0, 5, 3)), drawn(1, 5, 3)
    assert torch.allclose(tangent(x, y), torch.stack([b - (a @ b) * a for a, b in zip(x, y, strict=True)]))


def test_crossings_are_found_between_times() -> None:
    times = until(4.0, 4)
    assert crossing(times, 2 * times, 3.0) == 1.5
    assert crossing(times, times + 5, 3.0) == 0.0
    assert math.isnan(crossing(times, times, 9.0))


def test_integrals_are_exact_for_polynomials() -> None:
    assert integral(lambda x: 3 * x**2 + 1, -1.0, 2.0, nodes=5) == pytest.approx(12)
    assert integral(torch.exp, 0.0, 1.0) == pytest.approx(math.e - 1, rel=1e-12)
