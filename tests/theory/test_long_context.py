"""The formula for n tokens is what n tokens do, and its limits are the three of the theory."""

import math

import pytest
import torch

from rheoscope.theory.long_context import RHO, cosine_after_step, simulated_cosine


@pytest.mark.parametrize("n", [2, 3, 10, 50])
def test_the_formula_is_exact_for_every_number_of_tokens(n: int) -> None:
    c = torch.tensor([0.0, 0.5, 1 / (1 - RHO), 3.0], dtype=torch.float64)
    seen = torch.stack([simulated_cosine(n, float(one)) for one in c])
    assert torch.allclose(cosine_after_step(math.log(n), c), seen, atol=1e-6)


@pytest.mark.parametrize("log_n", [50.0, 1e3, 1e6])
def test_limits(log_n: float) -> None:
    found = cosine_after_step(log_n, torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64) / (1 - RHO))
    assert found.tolist() == pytest.approx([1, 4 * RHO / (1 + 3 * RHO), RHO], abs=1e-6)


def test_sharper_attention_gathers_less() -> None:
    found = cosine_after_step(20.0, torch.linspace(0, 5, 40, dtype=torch.float64))
    assert bool((found.diff() <= 0).all())
