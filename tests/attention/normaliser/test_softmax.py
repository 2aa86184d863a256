import torch

from rheoscope.attention.normaliser.domain import softmax
from tests.attention.cases import random


def test_empty_row_has_zero_weights_and_gradients() -> None:
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


def test_softmax_equals_torch_without_empty_rows() -> None:
    s = 30 * random(3, 2, 2, 4, 5)
    assert torch.equal(softmax(s), s.softmax(-1))


def test_values_and_two_derivatives_equal_the_naive_formula() -> None:
    def naive_softmax(s: torch.Tensor) -> torch.Tensor:
        is_empty = (s == -torch.inf).all(-1, keepdim=True)
        return torch.where(is_empty, 0, torch.where(is_empty, 0, s).softmax(-1))

    s = random(4, 2, 1, 4, 5).masked_fill(random(5, 4, 5) > 0.5, -torch.inf)
    s[:, :, 2] = -torch.inf
    assert torch.equal(softmax(s), naive_softmax(s))
    derivatives = []
    for function in (softmax, naive_softmax):
        x = s.clone().requires_grad_()
        a = function(x)
        (first,) = torch.autograd.grad((a * random(6, 2, 1, 4, 5)).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * random(7, 2, 1, 4, 5)).sum(), x)
        derivatives.append(torch.stack([a, first, second]).detach())
    assert torch.equal(*derivatives)
    assert bool(derivatives[0].isfinite().all())


def test_softmax_supports_zero_keys_and_vmap() -> None:
    assert softmax(torch.empty(1, 2, 3, 0)).shape == (1, 2, 3, 0)
    s = random(8, 3, 1, 2, 4, 4)
    assert torch.equal(torch.vmap(softmax)(s), s.softmax(-1))
