"""Tests of the covariance equation under linear and softmax attention."""

import pytest
import torch

from rheoscope.theory.gaussian import covariance_rate, gaussian_cloud, random_matrices, second_moment
from rheoscope.theory.particles import standard_normal

SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_covariance_rate_is_the_derivative_under_linear_attention(seed: int) -> None:
    Q, K, V = standard_normal(seed, 3, 3, 3)
    x = standard_normal(seed + 1, 20, 3)

    def covariance_after(h: torch.Tensor) -> torch.Tensor:
        """The covariance after x + h (1/n) Σ_j ⟨Qx, Kx_j⟩ V x_j."""
        return second_moment(x + h * ((x @ Q.mT) @ (x @ K.mT).mT / len(x)) @ (x @ V.mT))

    _, rate = torch.autograd.functional.jvp(
        covariance_after, torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    )
    assert torch.allclose(rate, covariance_rate(second_moment(x), V, K.mT @ Q))


@pytest.mark.parametrize("seed", SEEDS)
def test_softmax_mean_of_a_gaussian_is_sigma_a_x(seed: int) -> None:
    Q, K, _, S = random_matrices(seed)
    grid = torch.cartesian_prod(*[torch.linspace(-9, 9, 181, dtype=torch.float64)] * 2)
    density = -0.5 * (grid @ torch.linalg.inv(S) * grid).sum(-1)
    x = standard_normal(seed, 2)
    alpha = (density + (Q @ x) @ (K @ grid.mT)).softmax(-1)
    assert torch.allclose(alpha @ grid, S @ K.mT @ Q @ x, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_cloud_has_exactly_the_given_covariance(seed: int) -> None:
    S = random_matrices(seed)[3]
    x = gaussian_cloud(S, seed)
    assert torch.allclose(second_moment(x), S)
    assert x.mean(0).abs().max() < 1e-12
    assert torch.allclose(S, S.mT)
