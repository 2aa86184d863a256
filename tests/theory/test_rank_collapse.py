"""Tests of the cubic contraction."""

import pytest
import torch

from rheoscope.theory.particles import attention_weights, dot_product_attention, normalise, standard_normal
from rheoscope.theory.rank_collapse import BETA, N, residual_norms


def residual(x: torch.Tensor) -> float:
    return float((x - x.mean(0)).norm())


@pytest.mark.parametrize("skip", [False, True])
def test_storing_the_mean_separately_changes_nothing(skip: bool) -> None:
    r, mean = 0.3 * standard_normal(0, 8, 4), normalise(standard_normal(1, 1, 4))
    r = r - r.mean(0)
    x, norms = mean + r, [residual(mean + r)]
    for _ in range(2):
        x = skip * x + attention_weights(dot_product_attention(BETA), x) @ x
        norms.append(residual(x))
    assert residual_norms(r, mean, skip)[:3].tolist() == pytest.approx(norms, rel=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_small_singular_values_are_cubed(seed: int) -> None:
    r = 1e-3 * standard_normal(seed, N, 4)
    r = r - r.mean(0)
    output = attention_weights(dot_product_attention(BETA), normalise(standard_normal(seed + 1, 1, 4)) + r) @ r
    expected = BETA / N * torch.linalg.svdvals(r) ** 3
    assert torch.allclose(torch.linalg.svdvals(output - output.mean(0)), expected, rtol=1e-2)
