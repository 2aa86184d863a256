"""Python functions as parts of a mechanism: values, lowerings and gradients."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import rheoscope as rs
from rheoscope.attention.definition import repeat_kv_heads
from rheoscope.attention.feature_maps import Residual, Tanh
from rheoscope.attention.lower import block_size
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.python_functions import python_functions
from rheoscope.attention.score import SoftCap
from tests.attention.cases import curved_values, gap, inputs, random, wave


class LearnedScore(nn.Module):
    """A score with its own parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.B = nn.Parameter(random(3, 6, 6))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.tanh(q @ self.B @ k.mT)


def test_functions_equal_the_definition_pair_by_pair() -> None:
    """o_i = sum_j softmax_j f(q_i, k_j) g(v_j), written out; query head h uses key head h // 2."""
    q, k, v = inputs(3, 4)
    out = Mechanism(score=wave, value=curved_values)(q, k, v)
    for b, h, i in ((0, 0, 0), (1, 3, 2), (0, 2, 1)):
        s = [wave(q[b, h, i][None], k[b, h // 2, j][None])[0, 0] for j in range(4)]
        o = sum(a * curved_values(v[b, h // 2, j][None])[0] for j, a in enumerate(torch.stack(s).softmax(0)))
        assert gap(out[b, h, i], o) < 1e-12  # type: ignore[arg-type]


@pytest.mark.parametrize("wrapped", [False, True])
def test_blocks_return_gradients_of_captured_parameters(wrapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks recompute scores in the backward pass and still reach tensors that a function captures."""
    monkeypatch.setattr(block_size, "CPU_BLOCK", 40)
    q, k, v = inputs(9, 9)
    gradients = []
    for lowering in ("reference", "blocks"):
        f = LearnedScore()
        mechanism = Mechanism(score=f, value=curved_values)
        mechanism = replace(mechanism, score=SoftCap(mechanism.score, 0.7)) if wrapped else mechanism
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = mechanism(*leaves, mask="causal", lowering=lowering)
        gradients.append(torch.autograd.grad((out * random(4, *out.shape)).sum(), [f.B, *leaves]))
    assert max(gap(a, b) for a, b in zip(*gradients, strict=True)) < 1e-11


def test_long_texts_run_in_blocks_and_kernels_are_rejected_with_a_reason() -> None:
    q = torch.empty(1, 8, 2048, 64)
    choice = Mechanism(score=wave).explain(q[:, :, :4], q[:, :, :4], q[:, :, :4])
    assert choice.name == "reference"
    long_choice = Mechanism(score=wave).explain(torch.randn(1, 8, 2048, 4), torch.randn(1, 8, 2048, 4), q)
    assert long_choice.name == "blocks"
    assert "wave, which a fused kernel cannot inspect" in long_choice.rejections["sdpa"]


def test_value_function_alone_still_uses_a_fused_kernel() -> None:
    q, k, v = inputs(5, 5)
    mapped = Mechanism(value=curved_values)
    assert mapped.explain(q, k, v).name == "sdpa"
    assert gap(mapped(q, k, v), Mechanism()(q, repeat_kv_heads(k, 4), curved_values(repeat_kv_heads(v, 4)))) < 1e-12


def test_module_as_score_is_trained_with_its_layer() -> None:
    f = LearnedScore()
    layer = rs.nn.Attention(Mechanism(score=f))
    assert [id(p) for p in layer.parameters()] == [id(f.B)]
    before = layer(*inputs(4, 4)).detach()
    optimiser = torch.optim.SGD(layer.parameters(), 1.0)
    layer(*inputs(4, 4)).square().sum().backward()
    optimiser.step()
    assert gap(layer(*inputs(4, 4)), before) > 1e-4


def test_python_functions_are_found_inside_nested_parts() -> None:
    mechanism = Mechanism(score=SoftCap(Mechanism(score=wave).score, 1.0), value=curved_values)
    assert python_functions(mechanism) == [wave, curved_values]
    assert python_functions(Residual(Tanh(random(1, 3, 3), random(2, 1, 3), random(3, 3, 3)))) == []


def test_unused_input_of_a_function_has_zero_gradient() -> None:
    mechanism = Mechanism(score=lambda q, k: q.sum(-1, keepdim=True).expand(*q.shape[:-1], k.shape[-2]))
    q, k, v = inputs(4, 5)
    assert not rs.attention_gradients(mechanism, q, k, v, random(5, 2, 4, 4, 3)).k.any()
    constant = Mechanism(score=lambda q, k: torch.zeros(*q.shape[:-1], k.shape[-2], dtype=q.dtype))
    assert not rs.attention_gradients(constant, q, k, v, random(5, 2, 4, 4, 3)).q.any()
