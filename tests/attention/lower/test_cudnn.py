"""The inputs that are prepared for cuDNN's kernel and the use of its outputs, on a CPU.

A formula replaces the kernel. test_gpu.py tests the kernel itself.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from rheoscope.attention.definition import reference_attention
from rheoscope.attention.feature_maps import Linear
from rheoscope.attention.lower import cudnn
from rheoscope.attention.mask import Causal, Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.position import Rotary
from rheoscope.attention.position_bias import ALiBi, alibi_slopes
from rheoscope.attention.score import Distance, Gram, Relation
from tests.attention.cases import HEADS, gap, gradients, random, reference_output, to_dtype, zoo_mechanism

FOLDED = {
    "scaled_dot": lambda: zoo_mechanism("scaled_dot"),
    "bilinear": lambda: zoo_mechanism("bilinear"),
    "cosine": lambda: zoo_mechanism("cosine"),
    "metric": lambda: Mechanism(Distance(scale=0.1)),
    "relation": lambda: zoo_mechanism("relation"),
    "sink": lambda: Mechanism(normaliser=Sink(random(3, HEADS))),
    "alibi": lambda: Mechanism(position=ALiBi(alibi_slopes(HEADS).double())),
    "alibi metric": lambda: Mechanism(Distance(scale=0.1), position=ALiBi(alibi_slopes(HEADS).double())),
    "rotary cosine": lambda: Mechanism(zoo_mechanism("cosine").score, position=Rotary()),
    "value map": lambda: Mechanism(value=Linear(random(4, 6, 5))),
}


def scores(q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
    s = scale * q @ k.mT
    return s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf) if causal else s


def attention_formula(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, dropout: float = 0.0, with_lse: bool = False
) -> Any:
    s = scores(q.double(), k.double(), causal, scale)
    return (s.softmax(-1) @ v.double()).to(v.dtype), s.logsumexp(-1, keepdim=True).to(torch.float64)


def attention_formula_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: Any, causal: bool, scale: float
) -> Any:
    """As in the kernel, the weights use the given log-sum-exp and their mean the given outputs."""
    out, lse = (x.double() for x in saved)
    g, q, k, v = (x.double() for x in (g, q, k, v))
    p = (scores(q, k, causal, scale) - lse).exp()
    ds = p * (g @ v.mT - (g * out).sum(-1, keepdim=True))
    return scale * ds @ k, scale * ds.mT @ q, p.mT @ g


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "cudnn_attention", attention_formula)
    monkeypatch.setattr(cudnn, "cudnn_attention_backward", attention_formula_backward)


def tokens(dtype: torch.dtype = torch.bfloat16, m: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(random(seed, 2, HEADS if seed == 0 else 2, m, 6).to(dtype) for seed in range(3))  # type: ignore[return-value]


@pytest.mark.parametrize("name", FOLDED)
def test_every_fold_equals_the_reference_up_to_half_precision(name: str) -> None:
    mechanism = to_dtype(FOLDED[name]().with_mask("causal"), torch.float32)
    q, k, v = tokens()
    assert cudnn.mechanism_refusal(mechanism, q, k, v) == ""
    exact = reference_attention(to_dtype(mechanism, torch.float64), q.double(), k.double(), v.double())[0]
    assert gap(cudnn.run(mechanism, q, k, v), exact) < 1.5e-2


@pytest.mark.parametrize("sink", [0.0, random(3, HEADS), random(3, 1)], ids=["number", "per head", "shared"])
def test_a_sink_after_the_kernel_has_the_gradient_of_a_sink_inside_it(sink: Any) -> None:
    q, k, v = tokens(torch.float64)
    mechanism = Mechanism(normaliser=Sink(sink)).with_mask("causal")
    g = random(5, *q.shape)
    actual, expected = (gradients(run, mechanism, (q, k, v), g) for run in (cudnn.run, reference_output))
    assert max(gap(actual[name], expected[name]) for name in expected) < 1e-6  # the sink is float32
    assert gap(cudnn.run(mechanism, q, k, v), reference_output(mechanism, q, k, v)) < 1e-6


def test_mechanisms_that_do_not_fold_are_refused() -> None:
    q, k, v = tokens()
    assert "needs half precision on a GPU, got bfloat16 on cpu" in str(
        cudnn.try_lower(zoo_mechanism("scaled_dot"), q, k, v)
    )
    for mechanism, reason in {
        zoo_mechanism("sigmoid"): "Sigmoid, not softmax",
        Mechanism(mask=Causal() & Window(2)): "the causal mask or none",
        Mechanism(Gram(scale=-1.0)): "positive scale",
        zoo_mechanism("metric_map"): "change large distances",
        zoo_mechanism("kernel_laplace"): "Laplace cannot be written as a dot product",
        Mechanism(Relation(Linear(random(1, 6, 200)), Linear(random(2, 6, 200)))): "wider than 128",
    }.items():
        assert reason in cudnn.mechanism_refusal(mechanism, q, k, v)


def test_reasons_name_the_columns_the_sink_and_the_maps() -> None:
    q, k, _ = tokens()
    assert "in bfloat16; the bias per key takes three columns" in cudnn.explain_lowering(zoo_mechanism("metric"), q, k)
    assert "the sink is added from the log-sum-exp" in cudnn.explain_lowering(zoo_mechanism("softmax_sink"), q, k)
    assert "of mapped tokens" in cudnn.explain_lowering(zoo_mechanism("cosine"), q, k)
