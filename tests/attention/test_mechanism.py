"""The reference equals a naive implementation: three loops over plain numbers, with the formulas of MATH section 1."""

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace

import pytest
import torch

import rheoscope as rs
from rheoscope.attention.definition import query_key_positions, reference_attention, repeat_kv_heads
from rheoscope.attention.mask import Causal, Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.position import Rotary
from tests.attention.cases import MASKS, gap, inputs, random, to_dtype, zoo_mechanism

Row = list[float]
WIDTH = 3
B = random(1, WIDTH, WIDTH)
ADDITIVE = rs.mechanism("additive", dim=WIDTH, hidden=4)


def dot(a: Row, b: Row) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def squared_distance(a: Row, b: Row) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def bahdanau(q: Row, k: Row) -> float:
    W, U, w = (x.tolist() for x in (ADDITIVE.score.W, ADDITIVE.score.U, ADDITIVE.score.w))  # type: ignore[attr-defined]
    units = range(len(w))
    return sum(w[a][0] * math.tanh(sum(q[c] * W[c][a] + k[c] * U[c][a] for c in range(WIDTH))) for a in units)


def elu_plus_one(a: Row) -> Row:
    return [x + 1 if x > 0 else math.exp(x) for x in a]


def scaled_dot(q: Row, k: Row) -> float:
    return dot(q, k) / math.sqrt(WIDTH)


def softmax(s: Row, i: int) -> Row:
    return [math.exp(x) / sum(math.exp(y) for y in s) for x in s]


def sparsemax(s: Row, i: int) -> Row:
    """The threshold, found by trying every support size."""
    for count in range(len(s), 0, -1):
        best = sorted(s, reverse=True)[:count]
        tau = (sum(best) - 1) / count
        if best[-1] > tau:
            break
    return [max(x - tau, 0.0) for x in s]


def shaped(s: Row, i: int) -> Row:
    return [0.5 * (j == i) + 2.0 * x - 0.25 / len(s) for j, x in enumerate(softmax(s, i))]


NAIVE_FORMULAS: dict[str, tuple[Mechanism, Callable[[Row, Row], float], Callable[[Row, int], Row]]] = {
    "scaled_dot": (rs.mechanism("scaled_dot"), scaled_dot, softmax),
    "bilinear": (
        rs.mechanism("bilinear", B=B, scale=0.7),
        lambda q, k: 0.7 * sum(q[a] * float(B[a, b]) * k[b] for a in range(WIDTH) for b in range(WIDTH)),
        softmax,
    ),
    "additive": (ADDITIVE, bahdanau, softmax),
    "cosine": (
        rs.mechanism("cosine", tau=3.0),
        lambda q, k: 3 * dot(q, k) / math.sqrt(dot(q, q) * dot(k, k)),
        softmax,
    ),
    "metric": (rs.mechanism("metric", sigma=0.8), lambda q, k: -squared_distance(q, k) / (2 * 0.8**2), softmax),
    "kernel_laplace": (
        rs.mechanism("kernel_laplace", gamma=2.0),
        lambda q, k: -2 * math.sqrt(squared_distance(q, k)),
        softmax,
    ),
    "kernel_polynomial": (
        rs.mechanism("kernel_polynomial", degree=4, offset=0.3),
        lambda q, k: math.log((scaled_dot(q, k) + 0.3) ** 4),
        softmax,
    ),
    "softmax_sink": (
        rs.mechanism("softmax_sink", sink=0.5),
        scaled_dot,
        lambda s, i: [math.exp(x) / (math.exp(0.5) + sum(math.exp(y) for y in s)) for x in s],
    ),
    "sigmoid": (rs.mechanism("sigmoid", bias=-1.0), scaled_dot, lambda s, i: [1 / (1 + math.exp(1 - x)) for x in s]),
    "relu": (rs.mechanism("relu"), scaled_dot, lambda s, i: [max(x, 0) / len(s) for x in s]),
    "sparsemax": (rs.mechanism("sparsemax", scale=1.0), dot, sparsemax),
    "hard": (rs.mechanism("hard"), scaled_dot, lambda s, i: [float(x == max(s)) for x in s]),
    "linear": (
        rs.mechanism("linear"),
        lambda q, k: dot(elu_plus_one(q), elu_plus_one(k)),
        lambda s, i: [x / sum(s) for x in s],
    ),
    "shaped": (rs.mechanism("shaped", alpha=0.5, beta=2.0, gamma=0.25), scaled_dot, shaped),
}


def naive_attention(
    score: Callable[[Row, Row], float],
    normalise: Callable[[Row, int], Row],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
) -> list:
    """Loop over texts, heads and queries; query head h uses key head h // (H/G), and the last query sees the last key."""
    (_, heads, m, _), (_, groups, n, _) = q.shape, k.shape
    out = []
    for b in range(len(q)):
        for h in range(heads):
            keys, values = k[b, h // (heads // groups)].tolist(), v[b, h // (heads // groups)].tolist()
            for i in range(m):
                allowed = [j for j in range(n) if not causal or j <= i + n - m]
                weights = normalise([score(q[b, h, i].tolist(), keys[j]) for j in allowed], i) if allowed else []
                out.append(
                    [sum(w * values[j][c] for w, j in zip(weights, allowed, strict=True)) for c in range(v.shape[-1])]
                )
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAIVE_FORMULAS)
def test_reference_equals_the_naive_implementation(name: str, causal: bool) -> None:
    mechanism, score, normalise = NAIVE_FORMULAS[name]
    for m, n in [(4, 4)] if mechanism.domain.requires_square else [(4, 4), (2, 5), (5, 2), (1, 1)]:
        q, k, v = inputs(m, n, d=WIDTH, e=2, h=6, g=2, seed=17)
        out, _ = reference_attention(
            to_dtype(mechanism, torch.float64).with_mask("causal" if causal else None), q, k, v
        )
        expected = torch.tensor(naive_attention(score, normalise, q, k, v, causal), dtype=torch.float64)
        assert gap(out.reshape(-1, 2), expected) < 1e-12


def test_call_equals_the_reference() -> None:
    q, k, v = (x.float() for x in inputs(5, 7))
    for name in ("scaled_dot", "sigmoid", "linear"):
        mechanism = rs.mechanism(name)
        expected = reference_attention(mechanism.with_mask("causal"), q, k, v)[0]
        assert gap(mechanism(q, k, v, mask="causal"), expected) < 1e-5
        assert gap(mechanism.attend(q, k, v, mask="causal"), expected) < 1e-5
        assert torch.equal(mechanism(q, k, v, mask="causal", lowering="reference"), expected)


def test_weights_average_the_values() -> None:
    mechanism, (q, k, v) = zoo_mechanism("entmax15"), inputs(5, 7)
    a = mechanism.weights(q, k, mask="causal")
    assert gap(a @ repeat_kv_heads(v, 4), mechanism(q, k, v, mask="causal")) < 1e-12


def test_masks_of_mechanism_and_call_intersect() -> None:
    mechanism, (q, k, v) = zoo_mechanism("scaled_dot"), inputs(6, 6)
    causal_mechanism = replace(mechanism, mask=Causal())
    assert torch.equal(causal_mechanism(q, k, v, mask=Window(2)), mechanism(q, k, v, mask=Causal() & Window(2)))
    assert torch.equal(causal_mechanism.with_mask(None)(q, k, v), mechanism(q, k, v, mask="causal"))


@pytest.mark.parametrize("mask", MASKS)
def test_only_allowed_keys_have_weight(mask: str) -> None:
    q, k, _ = inputs(5, 7)
    allowed = MASKS[mask](5, 7)(*query_key_positions(5, 7)).expand(2, 4, 5, 7)
    assert torch.equal(zoo_mechanism("scaled_dot").weights(q, k, MASKS[mask](5, 7)) > 0, allowed)


def test_decoding_token_by_token_equals_the_whole_text() -> None:
    """Query r of m is at position n - m + r, so decoding token by token equals the whole text."""
    mechanism = replace(zoo_mechanism("metric"), position=Rotary())
    q, k, v = inputs(6, 6)
    full_output = mechanism(q, k, v, mask="causal")
    for t in range(6):
        step = mechanism(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], mask="causal")
        assert gap(step, full_output[:, :, t : t + 1]) < 1e-12


def test_query_heads_of_a_group_share_a_key_head() -> None:
    x = torch.arange(3.0).reshape(1, 3, 1, 1)
    assert repeat_kv_heads(x, 6).flatten().tolist() == [0, 0, 1, 1, 2, 2]
    assert repeat_kv_heads(x, 3) is x


def test_mechanism_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        rs.mechanism("metric").score = None  # type: ignore[misc]
