"""Tests of the covariance recursion against loops and closed forms."""

import pytest
import torch

from rheoscope.attention.normaliser.shaped import Shaped
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.theory.particles import standard_normal
from rheoscope.theory.shaped import (
    BRANCH_FRACTION,
    N_TOKENS,
    RHO,
    TAU,
    mean_correlation,
    next_covariance,
    uniform_correlations,
)


def covariance(n: int, rho: float) -> torch.Tensor:
    return torch.full((n, n), rho, dtype=torch.float64).fill_diagonal_(1)


def test_layer_is_a_mean_over_heads_and_their_mirror_images() -> None:
    S, noise = covariance(4, 0.3), standard_normal(0, 3, 4, 4)
    values, vectors = torch.linalg.eigh(S)
    root, total = vectors * values.sqrt(), torch.zeros_like(S)
    for Z in (*noise, *(-noise)):
        A = (root @ Z @ root.mT / TAU).softmax(-1)
        total += A @ S @ A.mT / 6
    assert torch.allclose(next_covariance(S, Softmax(), noise), (1 - BRANCH_FRACTION) * S + BRANCH_FRACTION * total)


def test_scores_have_the_covariance_of_random_queries_and_keys() -> None:
    S, noise = covariance(3, 0.5), standard_normal(1, 40_000, 3, 3)
    root = torch.linalg.cholesky(S)
    Y = root @ noise @ root.mT
    assert float((Y[:, 0, 1] * Y[:, 2, 0]).mean()) == pytest.approx(0.25, abs=0.03)
    assert float((Y[:, 0, 1] * Y[:, 0, 1]).mean()) == pytest.approx(1, abs=0.03)


def test_uniform_attention_follows_the_recursion() -> None:
    S, no_scores = covariance(N_TOKENS, RHO), torch.zeros(1, N_TOKENS, N_TOKENS, dtype=torch.float64)
    for expected in uniform_correlations()[:6].tolist():
        assert float(mean_correlation(S)) == pytest.approx(expected)
        S = next_covariance(S, Softmax(), no_scores)
    assert bool((uniform_correlations().diff() >= -1e-15).all())


def test_shaped_attention_with_zero_scores_changes_nothing() -> None:
    S, no_scores = covariance(5, 0.4), torch.zeros(2, 5, 5, dtype=torch.float64)
    assert torch.allclose(next_covariance(S, Shaped(), no_scores), S)


def test_first_order_change_is_a_multiple_of_the_covariance() -> None:
    n = 5
    S, P = covariance(n, 0.4), torch.eye(n, dtype=torch.float64) - 1 / n
    change = (next_covariance(S, Shaped(), standard_normal(2, 60_000, n, n)) - S) / BRANCH_FRACTION * TAU**2
    assert torch.allclose(change, S * torch.trace(S @ P @ S @ P) / n**2, atol=0.02)
