"""Fast functions of scores: torch's own outside a kernel, with gradients that stop where a function ends."""

import pytest
import torch

from rheoscope.attention import gpu_math
from tests.attention.cases import random


@pytest.mark.parametrize("f", [gpu_math.tanh, gpu_math.log, gpu_math.root], ids=["tanh", "log", "root"])
def test_gradients(f: object) -> None:
    x = (random(1, 20).abs() + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(f, x)


def test_the_ends() -> None:
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    for f, at_zero in ((gpu_math.log, -torch.inf), (gpu_math.root, 0.0)):
        y = f(x)
        assert y.tolist() == [at_zero, at_zero]
        (slope,) = torch.autograd.grad(y, x, torch.ones(2, dtype=torch.float64))
        assert slope.tolist() == [0.0, 0.0]
    assert gpu_math.root(torch.tensor([-1e-3])).item() == 0


def test_the_functions_themselves() -> None:
    x = random(1, 20).abs()
    assert torch.allclose(gpu_math.tanh(x), x.tanh())
    assert torch.allclose(gpu_math.log(x), x.log())
    assert torch.allclose(gpu_math.root(x), x.sqrt())
