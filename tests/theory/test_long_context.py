"""Tests of the cosine after one step: exact for n tokens, with the limits of the theory."""

import math

import pytest
import torch

from rheoscope.theory.long_context import RHO, cosine_after_step, simulated_cosine


@pytest.mark.parametrize("n", [2, 3, 10, 50])
def test_formula_equals_the_simulation_for_every_n(n: int) -> None:
    c = torch.tensor([0.0, 0.5, 1 / (1 - RHO), 3.0], dtype=torch.float64)
    simulated = torch.stack([simulated_cosine(n, float(c_value)) for c_value in c])
    assert torch.allclose(cosine_after_step(math.log(n), c), simulated, atol=1e-6)


@pytest.mark.parametrize("log_n", [50.0, 1e3, 1e6])
def test_cosine_has_the_three_limits(log_n: float) -> None:
    cosines = cosine_after_step(log_n, torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64) / (1 - RHO))
    assert cosines.tolist() == pytest.approx([1, 4 * RHO / (1 + 3 * RHO), RHO], abs=1e-6)


def test_sharper_attention_lowers_the_cosine() -> None:
    cosines = cosine_after_step(20.0, torch.linspace(0, 5, 40, dtype=torch.float64))
    assert bool((cosines.diff() <= 0).all())
