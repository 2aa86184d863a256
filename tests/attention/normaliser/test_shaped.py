import torch

from rheoscope.attention.normaliser.domain import softmax
from rheoscope.attention.normaliser.shaped import Shaped
from tests.attention.cases import gap, random


def test_weights_are_the_sum_of_three_terms() -> None:
    s = random(1, 2, 2, 4, 4)
    expected = 0.5 * torch.eye(4).double() + 2 * softmax(s) - 0.3 * torch.full((4, 4), 0.25).double()
    assert gap(Shaped(0.5, 2.0, 0.3)(s), expected) < 1e-14


def test_zero_logits_yield_the_identity() -> None:
    """At initialisation the mean cancels attention and leaves alpha I, so depth does not mix the tokens."""
    s = torch.zeros(1, 1, 3, 3).masked_fill(~torch.ones(3, 3).bool().tril(), -torch.inf)
    assert gap(Shaped()(s), torch.eye(3)[None, None]) < 1e-7


def test_masked_keys_are_zero_even_on_the_diagonal() -> None:
    s = random(2, 1, 1, 3, 3)
    s[..., 1, 1], s[..., 2, :] = -torch.inf, -torch.inf
    a = Shaped()(s)[0, 0]
    assert float(a[1, 1]) == 0.0
    assert not bool(a[2].any())
