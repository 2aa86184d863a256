"""Tests of the equation of the common cosine against the particles."""

import pytest
import torch

from rheoscope.theory.equiangular import cosine_curves, cosine_rate, predicted_crossing_time
from rheoscope.theory.particles import dot_product_attention, sphere_velocity, time_grid


@pytest.mark.parametrize(("n", "beta", "gamma"), [(2, 1.0, 0.0), (5, 4.0, 0.3), (9, 0.0, 0.7), (12, 2.5, -0.05)])
def test_cosine_rate_is_the_derivative_of_the_cosine(n: int, beta: float, gamma: float) -> None:
    table = torch.full((n, n), gamma, dtype=torch.float64).fill_diagonal_(1)
    x = torch.linalg.cholesky(table)
    velocity = sphere_velocity(dot_product_attention(beta))(0.0, x)
    pairs = velocity @ x.mT + x @ velocity.mT
    expected = float(cosine_rate(torch.tensor(gamma, dtype=torch.float64), n, beta))
    assert pairs[~torch.eye(n, dtype=torch.bool)].numpy() == pytest.approx(expected)


def test_all_cosines_stay_equal_and_follow_the_equation() -> None:
    times, cosine, ode = cosine_curves(6, 3.0, time_grid(6.0, 120))
    assert torch.allclose(cosine, ode, atol=1e-6)
    assert bool((cosine.diff() > 0).all())
    crossing_index = int((cosine >= 0.9).int().argmax())
    assert float(times[crossing_index - 1]) < predicted_crossing_time(6, 3.0) <= float(times[crossing_index])
