"""Who comes later changes nothing for those before."""

from dataclasses import replace

import pytest
import torch

from rheoscope.attention.mask import Causal
from rheoscope.theory.causal import BETA, LEVEL, arrival, slowness
from rheoscope.theory.particles import crossing, dot, drawn, evolve, on_sphere, unit, until


def test_a_later_token_leaves_earlier_ones_as_they_are() -> None:
    velocity, x, other = on_sphere(replace(dot(BETA), mask=Causal())), unit(drawn(0, 6, 3)), unit(drawn(1, 6, 3))
    one = evolve(velocity, x, until(2.0, 20), unit)
    two = evolve(velocity, torch.cat([x[:4], other[4:]]), until(2.0, 20), unit)
    assert torch.equal(one[:, :4], two[:, :4])
    assert not torch.allclose(one[:, 4:], two[:, 4:])


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 0.6])
def test_the_second_token_obeys_its_equation(gamma: float) -> None:
    x = torch.tensor([[1.0, 0.0], [gamma, (1 - gamma**2) ** 0.5]], dtype=torch.float64)
    velocity = on_sphere(replace(dot(BETA), mask=Causal()))
    assert 1 / float(velocity(0.0, x)[1, 0]) == pytest.approx(float(slowness(torch.tensor([gamma], dtype=x.dtype))))
    times = until(30.0, 200)
    seen = evolve(velocity, x, times, unit)[:, 1, 0]
    assert crossing(times, seen, LEVEL) == pytest.approx(arrival(gamma), rel=1e-3)
