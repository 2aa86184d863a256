"""Tests of the energy along the flow: its rate and its gradient."""

import pytest
import torch

from rheoscope.theory.energy import BETA, count_decreases, energy_rate, interaction_energy
from rheoscope.theory.particles import (
    dot_product_attention,
    normalise,
    sphere_velocity,
    standard_normal,
    unnormalised_velocity,
)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("normalised", [True, False])
def test_energy_rate_is_the_derivative_along_the_flow(seed: int, normalised: bool) -> None:
    x = normalise(standard_normal(seed, 6, 3))
    velocity = sphere_velocity(dot_product_attention(BETA)) if normalised else unnormalised_velocity(BETA)
    _, expected = torch.autograd.functional.jvp(interaction_energy, x, velocity(0.0, x))
    assert float(energy_rate(x, velocity, normalised)) == pytest.approx(float(expected))
    assert float(expected) > 0


@pytest.mark.parametrize("seed", range(3))
def test_unnormalised_velocity_is_n_times_the_gradient(seed: int) -> None:
    x = normalise(standard_normal(seed, 5, 3)).requires_grad_()
    (gradient,) = torch.autograd.grad(interaction_energy(x), x)
    tangent_gradient = gradient - (gradient * x).sum(-1, keepdim=True) * x
    assert torch.allclose(unnormalised_velocity(BETA)(0.0, x.detach()), 5 * tangent_gradient.detach())


def test_decreases_are_counted_without_rounding() -> None:
    assert count_decreases(torch.tensor([0.0, 1.0, 0.5, 0.7, 0.2, 0.2 - 1e-15], dtype=torch.float64)) == 2
