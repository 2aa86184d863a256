"""Tests of causal attention on the sphere."""

from dataclasses import replace

import pytest
import torch

from rheoscope.attention.mask import Causal
from rheoscope.theory.causal import BETA, TARGET_COSINE, arrival_time, inverse_rate
from rheoscope.theory.particles import (
    crossing_time,
    dot_product_attention,
    evolve,
    normalise,
    sphere_velocity,
    standard_normal,
    time_grid,
)


def test_later_tokens_do_not_affect_earlier_tokens() -> None:
    velocity, x, replacement = (
        sphere_velocity(replace(dot_product_attention(BETA), mask=Causal())),
        normalise(standard_normal(0, 6, 3)),
        normalise(standard_normal(1, 6, 3)),
    )
    original = evolve(velocity, x, time_grid(2.0, 20), normalise)
    changed = evolve(velocity, torch.cat([x[:4], replacement[4:]]), time_grid(2.0, 20), normalise)
    assert torch.equal(original[:, :4], changed[:, :4])
    assert not torch.allclose(original[:, 4:], changed[:, 4:])


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 0.6])
def test_second_token_follows_its_equation(gamma: float) -> None:
    x = torch.tensor([[1.0, 0.0], [gamma, (1 - gamma**2) ** 0.5]], dtype=torch.float64)
    velocity = sphere_velocity(replace(dot_product_attention(BETA), mask=Causal()))
    assert 1 / float(velocity(0.0, x)[1, 0]) == pytest.approx(float(inverse_rate(torch.tensor([gamma], dtype=x.dtype))))
    times = time_grid(30.0, 200)
    cosine = evolve(velocity, x, times, normalise)[:, 1, 0]
    assert crossing_time(times, cosine, TARGET_COSINE) == pytest.approx(arrival_time(gamma), rel=1e-3)
