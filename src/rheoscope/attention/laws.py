"""The laws that named mechanisms declare, as functions that measure how far they are broken.

Each law takes a mechanism and inputs q, k, v (self-attention of random tokens, or cross attention where the domain
allows it) and returns the largest violation: 0 where the law holds. `rheoscope attention` shows them live; the tests
run the same functions on thousands of random inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from rheoscope.attention.definition import for_every_head, reference
from rheoscope.attention.feature_maps import Identity
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.domain import Normaliser, softmax
from rheoscope.attention.normaliser.entmax import Entmax, bisect
from rheoscope.attention.normaliser.shaped import Shaped
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.shapes import RheoscopeError

Part = TypeVar("Part", bound=Normaliser)


@dataclass(frozen=True)
class Law:
    """A statement, the function that measures its violation, and the largest violation that rounding explains."""

    statement: str
    violation: Callable[[Mechanism, Tensor, Tensor, Tensor], float]
    tolerance: float = 1e-9


def gap(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest number involved (absolute below 1)."""
    return float((a - b).abs().max() / max(1.0, float(b.abs().max())))


def output(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return reference(mechanism, q, k, v)[0]


def weights(mechanism: Mechanism, q: Tensor, k: Tensor) -> Tensor:
    return reference(replace(mechanism, value=Identity()), q, k, k)[1]


def _shuffled(n: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(n))


def _part(mechanism: Mechanism, kind: type[Part]) -> Part:
    if not isinstance(mechanism.normaliser, kind):
        raise RheoscopeError(f"this law speaks of {kind.__name__}, got {mechanism.normaliser}")
    return mechanism.normaliser


def linear_in_values(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    w = v.flip(-1) + 1
    both = output(mechanism, q, k, 2 * v + 3 * w)
    return gap(2 * output(mechanism, q, k, v) + 3 * output(mechanism, q, k, w), both)


def permutation(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    at_n = _shuffled(k.shape[-2])
    at_m = at_n if mechanism.domain.square else _shuffled(q.shape[-2])
    moved = output(mechanism, q[:, :, at_m], k[:, :, at_n], v[:, :, at_n])
    return gap(moved, output(mechanism, q, k, v)[:, :, at_m])


def masked_is_zero(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    """Forbidden keys weigh exactly 0 and cannot be felt; the first row is forbidden everything and gives 0."""
    m, n = q.shape[-2], k.shape[-2]
    permitted = torch.rand(m, n, generator=torch.Generator().manual_seed(m + n)) < 0.6
    permitted[:, n // 2], permitted[0] = False, False
    masked = mechanism.under(permitted)
    o, a = reference(masked, q, k, v)
    k2, v2 = k.clone(), v.clone()
    k2[:, :, n // 2], v2[:, :, n // 2] = 7.0, -7.0
    exact = float((a * ~permitted).abs().max() + o[:, :, 0].abs().max())
    return torch.inf if exact > 0 or not bool(a.isfinite().all()) else gap(output(masked, q, k2, v2), o)


def rows_sum_to_one(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    return float((weights(mechanism, q, k).sum(-1) - 1).abs().max())


def in_unit_interval(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    a = weights(mechanism, q, k)
    return float(torch.maximum(-a, a - 1).clamp(min=0).max())


def shift_invariant(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    s = mechanism.score(q, for_every_head(k, q.shape[1]))
    return gap(mechanism.normaliser(s + s[..., :1].abs().clamp(max=100) - 3), mechanism.normaliser(s))


def dot_form(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    k = for_every_head(k, q.shape[1])
    form = mechanism.score.dot(q, k)
    return torch.inf if form is None else gap(form.scores(), mechanism.score(q, k))


def symmetric_score(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    k = for_every_head(k, q.shape[1])
    return gap(mechanism.score(k, q).mT, mechanism.score(q, k))


def rotation(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    k = for_every_head(k, q.shape[1])
    d = q.shape[-1]
    turn = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(d), dtype=q.dtype))[0]
    return gap(mechanism.score(q @ turn, k @ turn), mechanism.score(q, k))


def _lowest(gram: Tensor) -> float:
    values = torch.linalg.eigvalsh((gram + gram.mT) / 2)
    return float((-values.amin(-1) / values.abs().amax(-1).clamp(min=1)).clamp(min=0).max())


def gram_psd(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    return _lowest(mechanism.score(q, q))


def kernel_psd(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    return _lowest(mechanism.score(q, q).exp())


def sink_identity(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    s = mechanism.score(q, for_every_head(k, q.shape[1]))
    sink = torch.as_tensor(_part(mechanism, Sink).sink, dtype=s.dtype).reshape(-1, 1, 1)
    plain = output(replace(mechanism, normaliser=Softmax()), q, k, v)
    return gap(plain * torch.sigmoid(s.logsumexp(-1, keepdim=True) - sink), output(mechanism, q, k, v))


def shaped_identity(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    part = _part(mechanism, Shaped)
    values = for_every_head(v, q.shape[1])
    plain = output(replace(mechanism, normaliser=Softmax()), q, k, v)
    by_hand = part.alpha * values + part.beta * plain - part.gamma * values.mean(-2, keepdim=True)
    return gap(by_hand, output(mechanism, q, k, v))


def sparse(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    """A key that lies 1/(alpha - 1) below the best gets weight exactly 0."""
    s = mechanism.score(q, for_every_head(k, q.shape[1]))
    alpha = _part(mechanism, Entmax).alpha
    far = s < s.amax(-1, keepdim=True) - 1 / (alpha - 1)
    return float((mechanism.normaliser(s) * far).max())


def bisection(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    alpha: float = _part(mechanism, Entmax).alpha
    s = mechanism.score(q, for_every_head(k, q.shape[1]))
    x = (s - s.amax(-1, keepdim=True)) * (alpha - 1)
    return gap(mechanism.normaliser(s), (x - bisect(x, alpha)).clamp(min=0) ** (1 / (alpha - 1)))


def doubly_stochastic(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    s = mechanism.score(q, for_every_head(k, q.shape[1]))
    s = s / s.abs().amax().clamp(min=1)
    return float((replace(_part(mechanism, Sinkhorn), rounds=100)(s).sum(-2) - 1).abs().max())


def limit_of_softmax(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> float:
    s = mechanism.score(q, for_every_head(k, q.shape[1])).round(decimals=3)
    return gap(softmax(s / 1e-6), mechanism.normaliser(s))


LAWS = {
    "linear_in_values": Law("o is linear in the values", linear_in_values),
    "permutation": Law("permuting tokens permutes the result", permutation),
    "masked_is_zero": Law("a forbidden key weighs exactly 0; an empty row gives 0", masked_is_zero),
    "rows_sum_to_one": Law("weights of a row sum to 1", rows_sum_to_one),
    "in_unit_interval": Law("weights lie in [0, 1]", in_unit_interval),
    "shift_invariant": Law("a constant added to a row of scores changes nothing", shift_invariant),
    "dot_form": Law("the score is a dot product plus one bias per query and per key", dot_form),
    "symmetric_score": Law("f(q, k) = f(k, q)", symmetric_score),
    "rotation": Law("turning q and k together changes no score", rotation),
    "gram_psd": Law("the scores of a cloud with itself are positive semi-definite", gram_psd),
    "kernel_psd": Law("e^scores of a cloud with itself are positive semi-definite", kernel_psd),
    "sink_identity": Law("o = attention · σ(logsumexp s − sink)", sink_identity),
    "shaped_identity": Law("o = α v_i + β attention − γ mean v", shaped_identity),
    "sparse": Law("a key 1/(α−1) below the best weighs exactly 0", sparse, 0.0),
    "bisection": Law("the threshold is the one that bisection finds", bisection, 1e-7),
    "doubly_stochastic": Law("columns sum to 1 as well, in the limit", doubly_stochastic, 1e-6),
    "limit_of_softmax": Law("softmax(s/T) tends to it as T → 0", limit_of_softmax),
}
