"""The laws that named mechanisms declare, each with a function that measures its violation.

Each function takes a mechanism and inputs q, k, v and returns the largest violation, 0 if the law holds. The inputs are
random tokens for self-attention, or for cross attention if the domain allows it. `rheoscope attention` shows the laws
live. The tests run the same functions on thousands of random inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from rheoscope.attention.definition import reference_attention, repeat_kv_heads
from rheoscope.attention.feature_maps import Identity
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.domain import Normaliser, softmax
from rheoscope.attention.normaliser.entmax import Entmax, bisection_threshold
from rheoscope.attention.normaliser.shaped import Shaped
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

NormaliserType = TypeVar("NormaliserType", bound=Normaliser)


@dataclass(frozen=True)
class Law:
    """A statement, the function that measures its violation, and the largest violation due to rounding."""

    statement: str
    violation: Callable[[Mechanism, Tensor, Tensor, Tensor], float]
    tolerance: float = 1e-9


def relative_difference(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest number involved (absolute below 1)."""
    return float((a - b).abs().max() / max(1.0, float(b.abs().max())))


def attention_output(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return reference_attention(mechanism, q, k, v)[0]


def attention_weights(mechanism: Mechanism, q: Tensor, k: Tensor) -> Tensor:
    return reference_attention(replace(mechanism, value=Identity()), q, k, k)[1]


def _fixed_permutation(n: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(n))


def _normaliser_of_type(mechanism: Mechanism, normaliser_type: type[NormaliserType]) -> NormaliserType:
    if not isinstance(mechanism.normaliser, normaliser_type):
        raise RheoscopeError(
            Message(
                "this law applies to {expected}, got {received}",
                expected=normaliser_type.__name__,
                received=type(mechanism.normaliser).__name__,
            )
        )
    return mechanism.normaliser


def linear_in_values(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    w = v.flip(-1) + 1
    combined = attention_output(mechanism, q, k, 2 * v + 3 * w)
    return relative_difference(
        2 * attention_output(mechanism, q, k, v) + 3 * attention_output(mechanism, q, k, w), combined
    )


def permutation(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    key_order = _fixed_permutation(k.shape[-2])
    query_order = key_order if mechanism.domain.requires_square else _fixed_permutation(q.shape[-2])
    permuted_output = attention_output(mechanism, q[:, :, query_order], k[:, :, key_order], v[:, :, key_order])
    return relative_difference(permuted_output, attention_output(mechanism, q, k, v)[:, :, query_order])


def masked_is_zero(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    """Masked keys have weight exactly 0 and no influence; the first row is fully masked and returns 0."""
    m, n = q.shape[-2], k.shape[-2]
    allowed = torch.rand(m, n, generator=torch.Generator().manual_seed(m + n)) < 0.6
    allowed[:, n // 2], allowed[0] = False, False
    masked_mechanism = mechanism.with_mask(allowed)
    o, a = reference_attention(masked_mechanism, q, k, v)
    changed_k, changed_v = k.clone(), v.clone()
    changed_k[:, :, n // 2], changed_v[:, :, n // 2] = 7.0, -7.0
    forbidden_weight = float((a * ~allowed).abs().max() + o[:, :, 0].abs().max())
    return (
        torch.inf
        if forbidden_weight > 0 or not bool(a.isfinite().all())
        else relative_difference(attention_output(masked_mechanism, q, changed_k, changed_v), o)
    )


def rows_sum_to_one(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    return float((attention_weights(mechanism, q, k).sum(-1) - 1).abs().max())


def in_unit_interval(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    a = attention_weights(mechanism, q, k)
    return float(torch.maximum(-a, a - 1).clamp(min=0).max())


def shift_invariant(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    s = mechanism.score(q, repeat_kv_heads(k, q.shape[1]))
    return relative_difference(mechanism.normaliser(s + s[..., :1].abs().clamp(max=100) - 3), mechanism.normaliser(s))


def dot_form(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    k = repeat_kv_heads(k, q.shape[1])
    form = mechanism.score.dot_form(q, k)
    return torch.inf if form is None else relative_difference(form.scores(), mechanism.score(q, k))


def symmetric_score(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    k = repeat_kv_heads(k, q.shape[1])
    return relative_difference(mechanism.score(k, q).mT, mechanism.score(q, k))


def rotation(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    k = repeat_kv_heads(k, q.shape[1])
    d = q.shape[-1]
    random_rotation = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(d), dtype=q.dtype))[0]
    return relative_difference(mechanism.score(q @ random_rotation, k @ random_rotation), mechanism.score(q, k))


def _psd_violation(gram: Tensor) -> float:
    eigenvalues = torch.linalg.eigvalsh((gram + gram.mT) / 2)
    return float((-eigenvalues.amin(-1) / eigenvalues.abs().amax(-1).clamp(min=1)).clamp(min=0).max())


def gram_psd(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    return _psd_violation(mechanism.score(q, q))


def kernel_psd(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    return _psd_violation(mechanism.score(q, q).exp())


def sink_identity(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    s = mechanism.score(q, repeat_kv_heads(k, q.shape[1]))
    sink = torch.as_tensor(_normaliser_of_type(mechanism, Sink).sink, dtype=s.dtype).reshape(-1, 1, 1)
    softmax_output = attention_output(replace(mechanism, normaliser=Softmax()), q, k, v)
    return relative_difference(
        softmax_output * torch.sigmoid(s.logsumexp(-1, keepdim=True) - sink), attention_output(mechanism, q, k, v)
    )


def shaped_identity(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    normaliser = _normaliser_of_type(mechanism, Shaped)
    values = repeat_kv_heads(v, q.shape[1])
    softmax_output = attention_output(replace(mechanism, normaliser=Softmax()), q, k, v)
    expected = (
        normaliser.alpha * values + normaliser.beta * softmax_output - normaliser.gamma * values.mean(-2, keepdim=True)
    )
    return relative_difference(expected, attention_output(mechanism, q, k, v))


def sparse(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    """A key whose score is 1/(alpha - 1) below the best has weight exactly 0."""
    s = mechanism.score(q, repeat_kv_heads(k, q.shape[1]))
    alpha = _normaliser_of_type(mechanism, Entmax).alpha
    below_support = s < s.amax(-1, keepdim=True) - 1 / (alpha - 1)
    return float((mechanism.normaliser(s) * below_support).max())


def bisection(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    alpha: float = _normaliser_of_type(mechanism, Entmax).alpha
    s = mechanism.score(q, repeat_kv_heads(k, q.shape[1]))
    x = (s - s.amax(-1, keepdim=True)) * (alpha - 1)
    return relative_difference(
        mechanism.normaliser(s), (x - bisection_threshold(x, alpha)).clamp(min=0) ** (1 / (alpha - 1))
    )


def doubly_stochastic(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    s = mechanism.score(q, repeat_kv_heads(k, q.shape[1]))
    s = s / s.abs().amax().clamp(min=1)
    return float((replace(_normaliser_of_type(mechanism, Sinkhorn), rounds=100)(s).sum(-2) - 1).abs().max())


def limit_of_softmax(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    s = mechanism.score(q, repeat_kv_heads(k, q.shape[1])).round(decimals=3)
    return relative_difference(softmax(s / 1e-6), mechanism.normaliser(s))


LAWS = {
    "linear_in_values": Law(Message("the output is linear in the values"), linear_in_values),
    "permutation": Law(Message("permuting the tokens permutes the output"), permutation),
    "masked_is_zero": Law(Message("a masked key has weight exactly 0; a fully masked row returns 0"), masked_is_zero),
    "rows_sum_to_one": Law(Message("the weights of a row sum to 1"), rows_sum_to_one),
    "in_unit_interval": Law(Message("weights lie in [0, 1]"), in_unit_interval),
    "shift_invariant": Law(
        Message("adding a constant to a row of scores does not change the weights"), shift_invariant
    ),
    "dot_form": Law(Message("the score is a dot product plus one bias per query and per key"), dot_form),
    "symmetric_score": Law(Message("f(q, k) = f(k, q)"), symmetric_score),
    "rotation": Law(Message("rotating q and k together does not change the scores"), rotation),
    "gram_psd": Law(Message("the score matrix of a point cloud with itself is positive semi-definite"), gram_psd),
    "kernel_psd": Law(
        Message("the exponentiated score matrix of a point cloud with itself is positive semi-definite"), kernel_psd
    ),
    "sink_identity": Law(Message("o = attention · σ(logsumexp s − sink)"), sink_identity),
    "shaped_identity": Law(Message("o = α v_i + β attention − γ mean v"), shaped_identity),
    "sparse": Law(Message("a key whose score is 1/(α−1) below the best has weight exactly 0"), sparse, 0.0),
    "bisection": Law(Message("the threshold equals the one from bisection"), bisection, 1e-7),
    "doubly_stochastic": Law(Message("columns also sum to 1 in the limit"), doubly_stochastic, 1e-6),
    "limit_of_softmax": Law(Message("it is the limit of softmax(s/T) as T → 0"), limit_of_softmax),
}
