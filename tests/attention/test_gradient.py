"""Closed-form gradients follow MATH section 1; tests/laws compares every mechanism with autograd."""

import math
from dataclasses import replace

import pytest
import torch

from rheoscope.attention.definition import reference_attention, repeat_kv_heads
from rheoscope.attention.gradient import attention_gradients, self_attention_gradients
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.position import Rotary
from rheoscope.attention.position_bias import ALiBi, alibi_slopes
from rheoscope.attention.score import Gram, SoftCap
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import MASKS, any_mechanism, gap, gradients, inputs, random, reference_output, zoo_mechanism


def test_softmax_gradients_equal_the_formulas() -> None:
    """dV = A^T G, D = G V^T, R = A (D - rowsum(A D)), dQ = scale R K, dK = scale R^T Q; grouped heads are summed."""
    q, k, v = inputs(4, 6)
    g = random(5, 2, 4, 4, 3)
    computed = attention_gradients(zoo_mechanism("scaled_dot"), q, k, v, g, mask="causal")
    keys, values = repeat_kv_heads(k, 4), repeat_kv_heads(v, 4)
    a = zoo_mechanism("scaled_dot").weights(q, k, mask="causal")
    d = g @ values.mT
    r = a * (d - (a * d).sum(-1, keepdim=True))
    scale = 1 / math.sqrt(6)
    assert gap(computed.scores, r) < 1e-14
    assert gap(computed.q, scale * r @ keys) < 1e-13
    per_head = scale * r.mT @ q, a.mT @ g
    for gradient, x in zip((computed.k, computed.v), per_head, strict=True):
        assert gap(gradient, torch.stack([x[:, 0] + x[:, 1], x[:, 2] + x[:, 3]], 1)) < 1e-13


def test_soft_cap_multiplies_by_its_slope() -> None:
    q, k, v = inputs()
    g, cap = random(5, 2, 4, 5, 3), 0.8
    capped = Mechanism(SoftCap(Gram(), cap))
    s = Gram()(q, repeat_kv_heads(k, 4))
    r = attention_gradients(capped, q, k, v, g).scores
    slope = r * (1 - (cap * torch.tanh(s / cap) / cap) ** 2)
    assert gap(attention_gradients(capped, q, k, v, g).q, slope @ repeat_kv_heads(k, 4) / math.sqrt(6)) < 1e-13


@pytest.mark.parametrize("name", ["scaled_dot", "sigmoid", "relu", "entmax15", "shaped", "sinkhorn", "metric"])
def test_reversed_map_is_the_gradient_of_the_scores(name: str) -> None:
    """R = dL/dS, so a bias added to the scores has this gradient."""
    from rheoscope.attention.position_bias import Bias

    mechanism = zoo_mechanism(name)
    q, k, v = inputs(5, 5)
    g = random(6, 2, 4, 5, 3)
    biased = replace(mechanism, position=Bias(torch.zeros(2, 4, 5, 5, dtype=torch.float64)))
    expected = gradients(reference_output, biased, (q, k, v), g)["position.table"]
    assert gap(attention_gradients(mechanism, q, k, v, g).scores, expected) < 1e-12


def test_linear_attention_is_invariant_to_the_scale_of_a_row() -> None:
    """Weights are homogeneous of degree 0 in the scores, so <R, S> = 0 along every row."""
    mechanism, (q, k, v) = zoo_mechanism("linear"), inputs()
    r = attention_gradients(mechanism, q, k, v, random(6, 2, 4, 5, 3)).scores
    s = mechanism.score(q, repeat_kv_heads(k, 4))
    assert float((r * s).sum(-1).abs().max()) < 1e-12


def test_gradient_step_changes_the_loss_by_the_squared_norm() -> None:
    """First order: L(q - t dq) - L(q) = -t |dq|^2 + O(t^2)."""
    mechanism, (q, k, v) = zoo_mechanism("metric"), inputs()
    g, t = random(6, 2, 4, 5, 3), 1e-6
    dq = attention_gradients(mechanism, q, k, v, g).q
    change = (
        (reference_attention(mechanism, q - t * dq, k, v)[0] - reference_attention(mechanism, q, k, v)[0]) * g
    ).sum() / t
    assert float(change) == pytest.approx(-float(dq.square().sum()), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients_keep_their_dtype_and_scores_are_float32(dtype: torch.dtype) -> None:
    """Computation is in float32, so gradients equal float64 up to one rounding of the dtype."""
    q, k, v = (x.to(dtype) for x in inputs())
    g = random(6, 2, 4, 5, 3, dtype=dtype)
    computed = attention_gradients(zoo_mechanism("metric"), q, k, v, g, mask="causal")
    exact = attention_gradients(zoo_mechanism("metric"), *(x.double() for x in (q, k, v, g)), mask="causal")
    assert {computed.q.dtype, computed.k.dtype, computed.v.dtype} == {dtype}
    assert computed.scores.dtype == torch.float32
    assert gap(computed.scores, exact.scores) < 1e-5
    assert max(gap(getattr(computed, c), getattr(exact, c)) for c in "qkv") <= torch.finfo(dtype).eps


def test_tensor_gradients_are_keyed_by_path() -> None:
    mechanism = replace(zoo_mechanism("metric_map"), position=ALiBi(alibi_slopes(4).double()))
    q, k, v = inputs()
    tensor_grads = attention_gradients(mechanism, q, k, v, random(6, 2, 4, 5, 3)).tensors
    assert set(tensor_grads) == {"score.phi.f.W", "score.phi.f.b", "score.phi.f.U", "position.slopes"}


@pytest.mark.parametrize("mask", ["none", "causal", "padding", "table per head"])
@pytest.mark.parametrize("name", ["scaled_dot", "metric", "additive", "sigmoid", "functions"])
def test_input_gradient_equals_autograd(name: str, mask: str) -> None:
    """dL/dX goes through queries, keys and values, with grouped heads, a position and d_v ≠ d_k."""
    mechanism = replace(any_mechanism(name), position=Rotary()).with_mask(MASKS[mask](5, 5))
    x, W_Q, W_K, W_V = random(1, 2, 5, 7), random(2, 4, 7, 6), random(3, 2, 7, 6), random(4, 2, 7, 3)
    leaves = [tensor.requires_grad_() for tensor in (0.3 * x, W_Q, W_K, W_V)]
    out = reference_attention(mechanism, *(leaves[0][:, None] @ W for W in leaves[1:]))[0]
    g = random(5, *out.shape)
    expected = torch.autograd.grad(out, leaves, g)
    computed = self_attention_gradients(mechanism, *(leaf.detach() for leaf in leaves), g)
    for a, b in zip((computed.x, computed.W_Q, computed.W_K, computed.W_V), expected, strict=True):
        assert gap(a, b) < 1e-11


def test_input_gradient_splits_by_role() -> None:
    """With W_Q = W_K = 0 the weights are constant, so a token acts only as a value."""
    x, W, zero = random(1, 1, 4, 3), random(2, 2, 3, 3), torch.zeros(2, 3, 3, dtype=torch.float64)
    computed = self_attention_gradients(zoo_mechanism("scaled_dot"), x, zero, zero, W, random(3, 1, 2, 4, 3))
    assert not computed.through_queries.any()
    assert not computed.through_keys.any()
    assert torch.equal(computed.x, computed.through_values)
    assert float(computed.x.abs().max()) > 0.1


def test_invalid_projection_shapes_are_rejected() -> None:
    with pytest.raises(RheoscopeError, match=r"got x \(4, 3\) and .*; type x\[None\], W_Q\[None\]"):
        self_attention_gradients(zoo_mechanism("scaled_dot"), random(1, 4, 3), *[random(2, 3, 3)] * 3, random(3, 4, 3))
