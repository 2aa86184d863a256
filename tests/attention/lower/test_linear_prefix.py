"""Linear attention by running sums."""

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
def test_chunks_of_any_length(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_prefix, "CHUNK", 4)
    q, k, v = random(1, 2, 3, n, 4), random(2, 2, 3, n, 4), random(3, 2, 3, n, 2)
    assert gap(linear_prefix.causal_sums(q, k, v), (q @ k.mT).tril() @ v) < 1e-12


@pytest.mark.parametrize("mask", [None, "causal"])
def test_a_text_of_several_chunks(mask: str | None) -> None:
    q, k, v = inputs(300, 300, h=2, g=1)
    mechanism = zoo_mechanism("linear").with_mask(mask)
    assert gap(linear_prefix.run(mechanism, q, k, v), reference_attention(mechanism, q, k, v)[0]) < 1e-11


def offers(mechanism: Mechanism, m: int = 5, n: int = 5) -> str:
    answer = linear_prefix.try_lower(mechanism, *inputs(m, n))
    return "" if isinstance(answer, LoweredCall) else answer


def test_what_sums_cannot_say_is_refused() -> None:
    linear = zoo_mechanism("linear")
    assert offers(linear) == offers(linear.with_mask("causal")) == offers(linear, 3, 5) == ""
    assert "the mask is another" in offers(linear.with_mask(Window(2)))
    assert "the mask is another" in offers(linear.with_mask("causal"), 3, 5)
    assert "divides by the sum" in offers(zoo_mechanism("scaled_dot"))
    assert "no bare inner product" in offers(Mechanism(Distance(Identity()), normaliser=DivideBySum()))
    biased = Mechanism(Gram(), position=ALiBi(alibi_slopes(4)), normaliser=DivideBySum())
    assert "bias of its own" in offers(biased)
    assert offers(Mechanism(linear.score, position=Rotary(), normaliser=DivideBySum())) == ""


def test_memory_is_linear() -> None:
    """A state of d x (e + 1) numbers a chunk; 2 x 64 Ki tokens of it run where all weights would be 17 GB."""
    q = torch.randn(1, 1, 1 << 16, 4)
    out = zoo_mechanism("linear")(q, q, q[..., :2], mask="causal")
    assert out.shape == (1, 1, 1 << 16, 2)
    assert bool(out.isfinite().all())
