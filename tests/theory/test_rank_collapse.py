"""Cubing, layer by layer."""

import pytest
import torch

from rheoscope.theory.particles import dot, drawn, unit, weights
from rheoscope.theory.rank_collapse import BETA, N, norms


def residual(x: torch.Tensor) -> float:
    return float((x - x.mean(0)).norm())


@pytest.mark.parametrize("skip", [False, True])
def test_carrying_the_mean_apart_changes_nothing(skip: bool) -> None:
    r, mean = 0.3 * drawn(0, 8, 4), unit(drawn(1, 1, 4))
    r = r - r.mean(0)
    x, seen = mean + r, [residual(mean + r)]
    for _ in range(2):
        x = skip * x + weights(dot(BETA), x) @ x
        seen.append(residual(x))
    assert norms(r, mean, skip)[:3].tolist() == pytest.approx(seen, rel=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_small_singular_values_are_cubed(seed: int) -> None:
    r = 1e-3 * drawn(seed, N, 4)
    r = r - r.mean(0)
    moved = weights(dot(BETA), unit(drawn(seed + 1, 1, 4)) + r) @ r
    due = BETA / N * torch.linalg.svdvals(r) ** 3
    assert torch.allclose(torch.linalg.svdvals(moved - moved.mean(0)), due, rtol=1e-2)
