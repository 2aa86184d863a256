"""Approximate functions of scores equal torch outside a kernel and have finite gradients."""

import pytest
import torch

from rheoscope.attention import gpu_math
from tests.attention.cases import random


@pytest.mark.parametrize("function", [gpu_math.tanh, gpu_math.log, gpu_math.sqrt], ids=["tanh", "log", "sqrt"])
def test_gradients_match_finite_differences(function: object) -> None:
    x = (random(1, 20).abs() + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(function, x)


def test_values_and_gradients_at_zero() -> None:
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    for function, value_at_zero in ((gpu_math.log, -torch.inf), (gpu_math.sqrt, 0.0)):
        y = function(x)
        assert y.tolist() == [value_at_zero, value_at_zero]
        (slope,) = torch.autograd.grad(y, x, torch.ones(2, dtype=torch.float64))
        assert slope.tolist() == [0.0, 0.0]
    assert gpu_math.sqrt(torch.tensor([-1e-3])).item() == 0


def test_functions_equal_torch_in_eager_mode() -> None:
    x = random(1, 20).abs()
    assert torch.allclose(gpu_math.tanh(x), x.tanh())
    assert torch.allclose(gpu_math.log(x), x.log())
    assert torch.allclose(gpu_math.sqrt(x), x.sqrt())
