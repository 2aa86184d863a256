import torch

from rheoscope.attention.normaliser.domain import softmax
from tests.attention.cases import random


def test_a_row_of_nothing_is_zero_and_has_no_gradient() -> None:
    s = random(1, 1, 1, 2, 3)
    s[..., 0, :] = -torch.inf
    s[..., 1, 2] = -torch.inf
    s.requires_grad_()
    a = softmax(s)
    assert a[0, 0, 0].tolist() == [0.0, 0.0, 0.0]
    assert a[0, 0, 1, 2].item() == 0.0
    (a * random(2, 1, 1, 2, 3)).sum().backward()
    assert s.grad is not None
    assert s.grad[0, 0, 0].tolist() == [0.0, 0.0, 0.0]
    assert bool(s.grad.isfinite().all())


def test_it_is_torch_elsewhere() -> None:
    s = 30 * random(3, 2, 2, 4, 5)
    assert torch.equal(softmax(s), s.softmax(-1))
