"""The running mean that shaped attention subtracts."""

import torch

from rheoscope.attention.lower.running_mean import subtract_past_mean, subtract_past_mean_torch
from tests.attention.cases import gap, random


def test_the_result_subtracts_the_mean_of_the_past() -> None:
    x, y = random(1, 2, 3, 7, 4), random(2, 2, 3, 7, 4)
    expected = torch.stack([0.5 * x[..., i, :] + y[..., i, :] - 2 * x[..., : i + 1, :].mean(-2) for i in range(7)], -2)
    assert gap(subtract_past_mean_torch(x, y, 0.5, 2.0), expected) < 1e-12
    assert gap(subtract_past_mean(x, y, 0.5, 2.0), expected) < 1e-12
