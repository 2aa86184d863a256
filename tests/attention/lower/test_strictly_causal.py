"""Attention to earlier tokens only: equal to the reference, forward and backward, on the kernel of causal attention."""

import pytest
import torch

from rheoscope.attention.definition import reference_attention
from rheoscope.attention.lower import strictly_causal
from rheoscope.attention.lower.lowering import LoweredCall
from rheoscope.attention.mask import Causal, ExcludeSelf, Mask, Window
from tests.attention.cases import gap, inputs, zoo_mechanism

STRICTLY_CAUSAL = Causal() & ExcludeSelf()


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("name", ["scaled_dot", "cosine", "metric", "mahalanobis"])
def test_outputs_and_gradients_equal_the_reference(name: str, n: int) -> None:
    mechanism = zoo_mechanism(name).with_mask(STRICTLY_CAUSAL)
    by_method = []
    for method in (lambda *x: mechanism.attend(*x), lambda *x: reference_attention(mechanism, *x)[0]):
        qkv = [x.clone().requires_grad_() for x in inputs(n, n)]
        out = method(*qkv)
        out.square().sum().backward()
        by_method.append([out.detach(), *(torch.zeros_like(x) if x.grad is None else x.grad for x in qkv)])
    assert mechanism.explain(*inputs(n, n)).name == "strictly_causal"
    assert max(gap(a, b) for a, b in zip(*by_method, strict=True)) < 1e-10


@pytest.mark.parametrize(
    ("name", "mask", "m"),
    [
        ("sigmoid", STRICTLY_CAUSAL, 5),
        ("softmax_sink", STRICTLY_CAUSAL, 5),
        ("scaled_dot", ExcludeSelf(), 5),
        ("scaled_dot", Causal(), 5),
        ("scaled_dot", STRICTLY_CAUSAL & Window(3), 5),
        ("scaled_dot", STRICTLY_CAUSAL, 1),
    ],
    ids=str,
)
def test_other_calls_are_left_to_other_lowerings(name: str, mask: Mask, m: int) -> None:
    assert not isinstance(strictly_causal.try_lower(zoo_mechanism(name).with_mask(mask), *inputs(m, 5)), LoweredCall)


def test_an_output_does_not_depend_on_its_own_key_or_later_ones() -> None:
    q, k, v = inputs(6, 6)
    mechanism = zoo_mechanism("scaled_dot").with_mask(STRICTLY_CAUSAL)
    before = mechanism.attend(q, k, v)
    after = mechanism.attend(q, *(torch.cat([x[..., :3, :], torch.randn_like(x[..., 3:, :])], -2) for x in (k, v)))
    assert torch.equal(before[..., :4, :], after[..., :4, :])
    assert not torch.equal(before[..., 4, :], after[..., 4, :])
