"""The closed form by the letters of MATH section 1; the battery compares every mechanism with autograd."""

import math
from dataclasses import replace

import pytest
import torch

from rheoscope.attention.definition import for_every_head, reference
from rheoscope.attention.gradient import attention_gradients, self_attention_gradients
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.position import ALiBi, Rotary, alibi_slopes
from rheoscope.attention.score import Gram, SoftCap
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import MASKS, any_mechanism, by_reference, gap, gradients, inputs, made, random


def test_softmax_by_hand() -> None:
    """dV = A^T G, D = G V^T, R = A (D - rowsum(A D)), dQ = scale R K, dK = scale R^T Q; groups add up."""
    q, k, v = inputs(4, 6)
    g = random(5, 2, 4, 4, 3)
    found = attention_gradients(made("scaled_dot"), q, k, v, g, mask="causal")
    keys, values = for_every_head(k, 4), for_every_head(v, 4)
    a = made("scaled_dot").weights(q, k, mask="causal")
    d = g @ values.mT
    r = a * (d - (a * d).sum(-1, keepdim=True))
    scale = 1 / math.sqrt(6)
    assert gap(found.scores, r) < 1e-14
    assert gap(found.q, scale * r @ keys) < 1e-13
    by_head = scale * r.mT @ q, a.mT @ g
    for got, x in zip((found.k, found.v), by_head, strict=True):
        assert gap(got, torch.stack([x[:, 0] + x[:, 1], x[:, 2] + x[:, 3]], 1)) < 1e-13


def test_a_soft_cap_adds_its_factor() -> None:
    q, k, v = inputs()
    g, cap = random(5, 2, 4, 5, 3), 0.8
    capped = Mechanism(SoftCap(Gram(), cap))
    s = Gram()(q, for_every_head(k, 4))
    r = attention_gradients(capped, q, k, v, g).scores
    slope = r * (1 - (cap * torch.tanh(s / cap) / cap) ** 2)
    found = attention_gradients(capped, q, k, v, g).q
    assert gap(found, slope @ for_every_head(k, 4) / math.sqrt(6)) < 1e-13


@pytest.mark.parametrize("name", ["scaled_dot", "sigmoid", "relu", "entmax15", "shaped", "sinkhorn", "metric"])
def test_the_reversed_map_is_the_gradient_of_the_scores(name: str) -> None:
    """R = dL/dS: a bias added to the scores has exactly this gradient."""
    from rheoscope.attention.position import Bias

    mechanism = made(name)
    q, k, v = inputs(5, 5)
    g = random(6, 2, 4, 5, 3)
    biased = replace(mechanism, position=Bias(torch.zeros(2, 4, 5, 5, dtype=torch.float64)))
    auto = gradients(by_reference, biased, (q, k, v), g)["position.table"]
    assert gap(attention_gradients(mechanism, q, k, v, g).scores, auto) < 1e-12


def test_linear_weights_do_not_feel_the_size_of_a_row_of_scores() -> None:
    """Weights of degree 0 in the scores: <R, S> = 0 along every row."""
    mechanism, (q, k, v) = made("linear"), inputs()
    r = attention_gradients(mechanism, q, k, v, random(6, 2, 4, 5, 3)).scores
    s = mechanism.score(q, for_every_head(k, 4))
    assert float((r * s).sum(-1).abs().max()) < 1e-12


def test_a_step_along_the_gradient_changes_the_loss_by_its_square() -> None:
    """First order: L(q - t dq) - L(q) = -t |dq|^2 + O(t^2)."""
    mechanism, (q, k, v) = made("metric"), inputs()
    g, t = random(6, 2, 4, 5, 3), 1e-6
    dq = attention_gradients(mechanism, q, k, v, g).q
    change = ((reference(mechanism, q - t * dq, k, v)[0] - reference(mechanism, q, k, v)[0]) * g).sum() / t
    assert float(change) == pytest.approx(-float(dq.square().sum()), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_come_back_as_halves_and_the_map_as_float32(dtype: torch.dtype) -> None:
    """Computed in float32 inside: gradients are those of float64 to one rounding of the dtype."""
    q, k, v = (x.to(dtype) for x in inputs())
    g = random(6, 2, 4, 5, 3, dtype=dtype)
    found = attention_gradients(made("metric"), q, k, v, g, mask="causal")
    exact = attention_gradients(made("metric"), *(x.double() for x in (q, k, v, g)), mask="causal")
    assert {found.q.dtype, found.k.dtype, found.v.dtype} == {dtype}
    assert found.scores.dtype == torch.float32
    assert gap(found.scores, exact.scores) < 1e-5
    assert max(gap(getattr(found, c), getattr(exact, c)) for c in "qkv") <= torch.finfo(dtype).eps


def test_tensors_are_named_by_their_path() -> None:
    mechanism = replace(made("metric_map"), position=ALiBi(alibi_slopes(4).double()))
    q, k, v = inputs()
    found = attention_gradients(mechanism, q, k, v, random(6, 2, 4, 5, 3)).tensors
    assert set(found) == {"score.phi.f.W", "score.phi.f.b", "score.phi.f.U", "position.slopes"}


@pytest.mark.parametrize("mask", ["none", "causal", "padding", "table a head"])
@pytest.mark.parametrize("name", ["scaled_dot", "metric", "additive", "sigmoid", "functions"])
def test_the_gradient_of_the_tokens_is_that_of_autograd(name: str, mask: str) -> None:
    """dL/dX through queries, keys and values together, with grouped heads, a position and d_v ≠ d_k."""
    mechanism = replace(any_mechanism(name), position=Rotary()).under(MASKS[mask](5, 5))
    x, W_Q, W_K, W_V = random(1, 2, 5, 7), random(2, 4, 7, 6), random(3, 2, 7, 6), random(4, 2, 7, 3)
    leaves = [part.requires_grad_() for part in (0.3 * x, W_Q, W_K, W_V)]
    out = reference(mechanism, *(leaves[0][:, None] @ W for W in leaves[1:]))[0]
    g = random(5, *out.shape)
    auto = torch.autograd.grad(out, leaves, g)
    found = self_attention_gradients(mechanism, *(part.detach() for part in leaves), g)
    for mine, theirs in zip((found.x, found.W_Q, found.W_K, found.W_V), auto, strict=True):
        assert gap(mine, theirs) < 1e-11


def test_each_role_of_a_token_has_its_own_part() -> None:
    """Where W_Q and W_K are 0, weights do not move: a token is felt as a value alone."""
    x, W, zero = random(1, 1, 4, 3), random(2, 2, 3, 3), torch.zeros(2, 3, 3, dtype=torch.float64)
    found = self_attention_gradients(made("scaled_dot"), x, zero, zero, W, random(3, 1, 2, 4, 3))
    assert not found.through_queries.any()
    assert not found.through_keys.any()
    assert torch.equal(found.x, found.through_values)
    assert float(found.x.abs().max()) > 0.1


def test_projections_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RheoscopeError, match=r"got x \(4, 3\) and .*; for one unbatched head type x\[None\]"):
        self_attention_gradients(made("scaled_dot"), random(1, 4, 3), *[random(2, 3, 3)] * 3, random(3, 4, 3))
