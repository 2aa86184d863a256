"""Attention, one definition.

    o(q) = sum_j alpha_j g(v_j),   alpha = nu( f(q, k_1) + b_1, …, f(q, k_n) + b_n ),   b_j = -inf where the mask forbids j

A `Mechanism` is the five choices (score f, mask, position, normaliser nu, value map g) as one frozen value. `reference`
is the formula itself and the oracle of every faster way; calling a mechanism takes the fastest way that is exactly
equal (`lower/`), and `explain` says which one and why.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rheoscope.attention.border import check_call, check_finite
from rheoscope.attention.feature import Feature, Identity
from rheoscope.attention.mask import Mask, as_mask
from rheoscope.attention.normaliser.domain import Domain, Normaliser
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.attention.position import Position
from rheoscope.attention.score import Gram, Score
from rheoscope.shapes import KeyAt, Keys, Outputs, Queries, RowAt, Scores, Weights

if TYPE_CHECKING:
    from rheoscope.attention.lower.choose import Choice

Masked = Mask | str | Tensor | None


@dataclass(frozen=True, eq=False)
class Mechanism:
    """One attention mechanism: five parts, no options.

    **Formula** o_i = sum_j nu(f(q_i, k_j) + b_ij) g(v_j), forbidden keys at -inf.

    **Shapes** q (b, h, m, d), k (b, g, n, d), v (b, g, n, e) give o (b, h, m, e); g divides h (grouped heads), m and n
    may differ (cross attention) wherever `mechanism.domain` allows it.

    **Laws** are declared by name for each named mechanism in `zoo.py` and tested by one battery.

    **Siblings** `rheoscope.mechanism(name)` gives the named ones; `dataclasses.replace` changes one part of any.

    >>> import torch, rheoscope as rs
    >>> q, k, v = torch.randn(3, 1, 2, 5, 4).unbind(0)
    >>> rs.mechanism("metric", sigma=2.0)(q, k, v, mask="causal").shape
    torch.Size([1, 2, 5, 4])
    """

    score: Score = Gram()
    mask: Mask = Mask()
    position: Position = Position()
    normaliser: Normaliser = Softmax()
    value: Feature = Identity()

    @property
    def domain(self) -> Domain:
        return self.normaliser.domain

    @property
    def is_dot_product(self) -> bool:
        """Scaled dot products, softmax, bare values, no position: what every fused kernel computes by itself."""
        return (
            type(self.score) is Gram
            and type(self.score.phi) is Identity
            and type(self.normaliser) is Softmax
            and type(self.value) is Identity
            and self.position.nowhere
        )

    def under(self, mask: Masked) -> "Mechanism":
        """The same mechanism, permitting only what `mask` permits too."""
        return self if mask is None else replace(self, mask=self.mask & as_mask(mask))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Masked = None, lowering: str | None = None) -> Tensor:
        """The outputs (b, h, m, e), by the fastest lowering that equals the reference, or by the one named."""
        check_finite(q=q, k=k, v=v)
        return self.attend(q, k, v, mask, lowering)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Masked = None, lowering: str | None = None) -> Tensor:
        """As a call, without looking at every number first: for layers inside a model."""
        return self.explain(q, k, v, mask, lowering).run(q, k, v)

    def explain(self, q: Tensor, k: Tensor, v: Tensor, mask: Masked = None, lowering: str | None = None) -> "Choice":
        """Which lowering these inputs take, why, and why not the others.

        >>> import torch, rheoscope as rs
        >>> q = torch.randn(1, 1, 4, 8)
        >>> print(rs.mechanism("scaled_dot").explain(q, q, q).name)
        sdpa
        """
        # WHAT is defined above; HOW is decided one room below, which needs this file.
        from rheoscope.attention.lower.choose import choose

        mechanism = self.under(mask)
        check_call(mechanism, q, k, v)
        return choose(mechanism, q, k, v, lowering)

    def weights(self, q: Tensor, k: Tensor, mask: Masked = None) -> Tensor:
        """All weights (b, h, m, n) at once; `weight_statistics` answers for long texts without holding them.

        >>> import torch, rheoscope as rs
        >>> rs.mechanism("scaled_dot").weights(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4), mask="causal")
        tensor([[[[1.0000, 0.0000],
                  [0.5000, 0.5000]]]])
        """
        mechanism = replace(self.under(mask), value=Identity())
        check_finite(q=q, k=k)
        check_call(mechanism, q, k, k)
        return reference(mechanism, q, k, k)[1]


def positions(m: int, n: int, device: torch.device | None = None) -> tuple[RowAt, KeyAt]:
    """Positions of m queries and n keys: the last query stands at the last key."""
    return torch.arange(n - m, n, device=device), torch.arange(n, device=device)


def for_every_head(x: Tensor, heads: int) -> Tensor:
    """Key/value heads repeated so that query head h meets head h // (heads / groups)."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def scores(mechanism: Mechanism, q: Queries, k: Keys, i: RowAt, j: KeyAt) -> Scores:
    """f(q_i, k_j) + b_ij of placed queries and keys at positions i and j; -inf where the mask forbids."""
    s = mechanism.score(q, k)
    bias = mechanism.position.bias(i, j)
    s = s if bias is None else s + bias.to(s.dtype)
    return s.masked_fill(~mechanism.mask(i, j), -torch.inf)


def reference(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> tuple[Outputs, Weights]:
    """The definition, read aloud: place, score, mask, normalise, average. Returns outputs and weights.

    Scores are computed in float32 or better, whatever the inputs are.
    """
    exact = torch.promote_types(q.dtype, torch.float32)
    i, j = positions(q.shape[-2], k.shape[-2], q.device)
    q, k, v = q.to(exact), for_every_head(k.to(exact), q.shape[1]), for_every_head(v.to(exact), q.shape[1])
    s = scores(mechanism, mechanism.position.place(q, i), mechanism.position.place(k, j), i, j)
    alpha = mechanism.normaliser(s)
    return alpha @ mechanism.value(v), alpha
