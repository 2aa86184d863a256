"""Tests of two heavy particles, their merging time and the initial groups."""

import math

import pytest
import torch

from rheoscope.theory import metastable
from rheoscope.theory.equiangular import cosine_rate
from rheoscope.theory.metastable import (
    CENTRE_ANGLE,
    GROUP_SIZES,
    approach_rate,
    count_clusters,
    growing_times,
    merging_time,
    two_groups,
)
from rheoscope.theory.particles import dot_product_attention, sphere_velocity


def test_equal_masses_follow_the_equiangular_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metastable, "GROUP_SIZES", (3, 3))
    gamma = torch.linspace(-0.5, 0.9, 9, dtype=torch.float64)
    assert torch.allclose(approach_rate(gamma, 4.0), cosine_rate(gamma, 2, 4.0))


@pytest.mark.parametrize("gamma", [-0.2, 0.4, 0.9])
def test_heavy_particles_equal_groups_at_one_point(gamma: float) -> None:
    angle = math.acos(gamma)
    first, second = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    x = torch.cat([first.expand(GROUP_SIZES[0], 2), second.expand(GROUP_SIZES[1], 2)])
    velocity = sphere_velocity(dot_product_attention(5.0))(0.0, x)
    expected = float(approach_rate(torch.tensor([gamma], dtype=torch.float64), 5.0))
    assert float(velocity[0] @ second + first @ velocity[-1]) == pytest.approx(expected)


def test_merging_time_grows_exponentially() -> None:
    times = [merging_time(0.2, beta) for beta in (20.0, 21.0, 22.0)]
    assert math.log(times[2] / times[1]) == pytest.approx(1 - 0.2, abs=0.06)
    assert times[0] < times[1] < times[2]


@pytest.mark.parametrize("seed", range(4))
def test_groups_have_their_centres(seed: int) -> None:
    x = two_groups(seed)
    angle = torch.atan2(x[:, 1], x[:, 0])
    assert float(angle[: GROUP_SIZES[0]].mean()) == pytest.approx(-CENTRE_ANGLE / 2)
    assert float(angle[GROUP_SIZES[0] :].mean()) == pytest.approx(CENTRE_ANGLE / 2)
    assert count_clusters(torch.eye(3, dtype=torch.float64).repeat(2, 1)) == 3


def test_time_steps_grow_from_002_to_at_most_one_half() -> None:
    times = growing_times(30.0)
    assert float(times[-1]) >= 30
    assert pytest.approx(float(times.diff()[0])) == 0.02
    assert float(times.diff().max()) <= 0.5 + 1e-12
