"""Tests of one network layer and one equation step against fully sampled weights and closed-form moments."""

import numpy as np
import pytest
import torch
from torch import Tensor

from rheoscope.theory.shaped_width import (
    BRANCH_FRACTION,
    INITIAL_COVARIANCE,
    TAU0,
    equation_step,
    network_layer,
    wishart_root,
)

V0 = torch.tensor(INITIAL_COVARIANCE, dtype=torch.float64)
M = len(V0)


def expected_moments() -> tuple[Tensor, Tensor]:
    """Drift and covariance by loops over entries, from E[G_ad G_bw] = V_ab V_dw for the scores G."""
    P = torch.eye(M, dtype=torch.float64) - 1 / M
    W = P @ V0 @ P
    b, S = torch.zeros_like(V0), torch.zeros(M, M, M, M, dtype=torch.float64)
    for i in range(M):
        for j in range(M):
            first = sum(V0[i, j] * W[k, w] * V0[k, w] for k in range(M) for w in range(M)) / M**2
            c = W.diagonal() - W.diagonal().mean()
            second = sum(V0[j, k] * V0[i, i] * c[k] + V0[i, k] * V0[j, j] * c[k] for k in range(M)) / (2 * M)
            b[i, j] = BRANCH_FRACTION / TAU0**2 * (first + second)
    VWV = V0 @ P @ V0 @ P @ V0 / M**2
    for index in np.ndindex(M, M, M, M):
        i, j, k, w = index
        linear = V0[i, k] * V0[j, w] + V0[i, w] * V0[j, k]
        attention_term = V0[i, k] * VWV[j, w] + V0[i, w] * VWV[j, k] + V0[j, k] * VWV[i, w] + V0[j, w] * VWV[i, k]
        S[index] = BRANCH_FRACTION * (2 - BRANCH_FRACTION) * linear + BRANCH_FRACTION**2 / TAU0**2 * attention_term
    return b, S


def moments(dV: Tensor, n: float) -> tuple[Tensor, Tensor]:
    return n * dV.mean(0), n * torch.einsum("rij,rkw->ijkw", dV, dV) / len(dV)


def test_layer_and_step_have_the_moments_of_the_equation() -> None:
    (b, S), n, runs = expected_moments(), 400, V0.repeat(40_000, 1, 1)
    for result in (
        equation_step(runs, 1 / n, np.random.default_rng(0)),
        network_layer(runs, n, np.random.default_rng(1)),
    ):
        drift, covariance = moments(result - V0, n)
        noise = (S.diagonal(dim1=0, dim2=2).diagonal(dim1=0, dim2=1) * n / len(runs)).sqrt()
        assert torch.allclose(covariance, S, atol=0.03)
        assert bool(((drift - b).abs() < 4 * noise).all())


def test_drift_of_a_step_equals_its_formula() -> None:
    """With a large step many runs average out the noise."""
    b, _ = expected_moments()
    drift = 50 * (equation_step(V0.repeat(200_000, 1, 1), 0.02, np.random.default_rng(2)).mean(0) - V0)
    assert torch.allclose(drift, b, atol=0.03)
    assert float(b.abs().max()) > 0.08


def test_layer_equals_fully_sampled_weights_in_distribution() -> None:
    n, runs, generator = 12, 20_000, torch.Generator().manual_seed(0)

    def weights() -> Tensor:
        return torch.randn(runs, n, n, generator=generator, dtype=torch.float64) / n**0.5

    X = torch.zeros(M, n, dtype=torch.float64)
    X[:, :M] = torch.linalg.cholesky(V0) * n**0.5
    scores = (X @ weights()) @ (X @ weights()).mT / (TAU0 * n)
    A = torch.eye(M) + scores.softmax(-1) - 1 / M
    Y = (1 - BRANCH_FRACTION) ** 0.5 * X + BRANCH_FRACTION**0.5 * A @ (X @ weights())
    sampled, by_wishart = Y @ Y.mT / n, network_layer(V0.repeat(runs, 1, 1), n, np.random.default_rng(3))
    assert torch.allclose(sampled.mean(0), by_wishart.mean(0), atol=0.03)
    assert torch.allclose(sampled.std(0), by_wishart.std(0), atol=0.03)


def test_wishart_root_has_the_wishart_moments() -> None:
    R = wishart_root(np.random.default_rng(0), 50_000, 2, 5)
    table = R @ R.mT
    assert torch.allclose(table.mean(0), 5 * torch.eye(2, dtype=torch.float64), atol=0.1)
    assert float(table[:, 0, 1].var()) == pytest.approx(5, rel=0.05)
    assert float(table[:, 0, 0].var()) == pytest.approx(10, rel=0.05)
