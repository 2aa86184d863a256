"""Linear attention from running sums."""

import pytest
import torch

from rheoscope.attention.definition import reference_attention
from rheoscope.attention.feature_maps import Identity
from rheoscope.attention.lower import linear_prefix
from rheoscope.attention.lower.lowering import LoweredCall
from rheoscope.attention.mask import Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.linear import DivideBySum
from rheoscope.attention.position import Rotary
from rheoscope.attention.position_bias import ALiBi, alibi_slopes
from rheoscope.attention.score import Distance, Gram
from tests.attention.cases import gap, inputs, random, zoo_mechanism


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 9])
def test_causal_sums_of_texts_of_any_length(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_prefix, "CHUNK", 4)
    q, k, v = random(1, 2, 3, n, 4), random(2, 2, 3, n, 4), random(3, 2, 3, n, 2)
    assert gap(linear_prefix.causal_sums(q, k, v), (q @ k.mT).tril() @ v) < 1e-12


@pytest.mark.parametrize("mask", [None, "causal"])
def test_several_chunks_equal_the_reference(mask: str | None) -> None:
    q, k, v = inputs(300, 300, h=2, g=1)
    mechanism = zoo_mechanism("linear").with_mask(mask)
    assert gap(linear_prefix.run(mechanism, q, k, v), reference_attention(mechanism, q, k, v)[0]) < 1e-11


def refusal(mechanism: Mechanism, m: int = 5, n: int = 5) -> str:
    outcome = linear_prefix.try_lower(mechanism, *inputs(m, n))
    return "" if isinstance(outcome, LoweredCall) else outcome


def test_mechanisms_that_are_not_sums_are_refused() -> None:
    linear = zoo_mechanism("linear")
    assert refusal(linear) == refusal(linear.with_mask("causal")) == refusal(linear, 3, 5) == ""
    assert "need no mask, or the causal mask" in refusal(linear.with_mask(Window(2)))
    assert "need no mask, or the causal mask" in refusal(linear.with_mask("causal"), 3, 5)
    assert "divides by the sum" in refusal(zoo_mechanism("scaled_dot"))
    assert "not a plain inner product" in refusal(Mechanism(Distance(Identity()), normaliser=DivideBySum()))
    biased = Mechanism(Gram(), position=ALiBi(alibi_slopes(4)), normaliser=DivideBySum())
    assert "adds a bias to every pair" in refusal(biased)
    assert refusal(Mechanism(linear.score, position=Rotary(), normaliser=DivideBySum())) == ""


def test_memory_is_linear() -> None:
    """A chunk has a state of d x (e + 1) numbers. All weights of these 65,536 tokens would take 17 GB."""
    q = torch.randn(1, 1, 1 << 16, 4)
    out = zoo_mechanism("linear")(q, q, q[..., :2], mask="causal")
    assert out.shape == (1, 1, 1 << 16, 2)
    assert bool(out.isfinite().all())
