"""Attention, one definition.

    o(q) = sum_j alpha_j g(v_j),   alpha = nu( f(q, k_1) + b_1, …, f(q, k_n) + b_n ),   b_j = -inf where the mask forbids j

A `Definition` is the five choices (score f, mask, position, normaliser nu, value map g) as one frozen value, and
`reference` is the formula itself, the oracle of every faster way. How it runs is no business of this file: the lowerings
read a definition, and `Mechanism` is the definition that knows how to run.
"""

from abc import ABC
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from rheoscope.attention.feature_maps import Feature, Identity
from rheoscope.attention.mask import Mask, NoMask, as_mask
from rheoscope.attention.normaliser.domain import Domain, Normaliser
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.attention.parameters import Structure, structure, with_parts
from rheoscope.attention.position import NoPosition, Position
from rheoscope.attention.score import Gram, Score
from rheoscope.shapes import KeyAt, Keys, Outputs, Queries, RowAt, Scores, Weights

Masked = Mask | str | Tensor | None
Own = TypeVar("Own", bound="Definition")


@dataclass(frozen=True, eq=False)
class Definition(ABC):  # noqa: B024 (abstract: `Mechanism` is the one to make)
    """Five parts and what they compute together."""

    score: Score = Gram()
    mask: Mask = NoMask()
    position: Position = NoPosition()
    normaliser: Normaliser = Softmax()
    value: Feature = Identity()

    @property
    def domain(self) -> Domain:
        return self.normaliser.domain

    @property
    def is_dot_product(self) -> bool:
        """Scaled dot products, softmax, bare values, no position: what every fused kernel computes by itself."""
        fused = self.normaliser.fused
        bare = fused is not None and fused.bare
        return bare and self.score.plain and self.value.identity and self.position.nowhere

    @cached_property
    def structure(self) -> Structure:
        """All but the numbers inside its tensors: what checks and the choice of a lowering may depend on."""
        return structure(self)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles hold the five parts, nothing that was remembered."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def under(self: Own, mask: Masked) -> Own:
        """The same mechanism, permitting only what `mask` permits too."""
        return self if mask is None else with_parts(self, mask=self.mask & as_mask(mask))

    def of_heads(self: Own, some: list[int]) -> Own:
        """The mechanism of some query heads alone: every part gives what it holds for them."""
        return replace(self, **{field.name: getattr(self, field.name).of_heads(some) for field in fields(self)})


def positions(m: int, n: int, device: torch.device | None = None) -> tuple[RowAt, KeyAt]:
    """Positions of m queries and n keys: the last query stands at the last key."""
    return torch.arange(n - m, n, device=device), torch.arange(n, device=device)


def for_every_head(x: Tensor, heads: int) -> Tensor:
    """Key/value heads repeated so that query head h meets head h // (heads / groups)."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def scores(mechanism: Definition, q: Queries, k: Keys, i: RowAt, j: KeyAt) -> Scores:
    """f(q_i, k_j) + b_ij of placed queries and keys at positions i and j; -inf where the mask forbids."""
    s = mechanism.score(q, k)
    bias = mechanism.position.bias(i, j)
    s = s if bias is None else s + bias.to(s.dtype)
    return s.masked_fill(~mechanism.mask(i, j), -torch.inf)


def reference(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> tuple[Outputs, Weights]:
    """The definition, read aloud: place, score, mask, normalise, average. Returns outputs and weights.

    Scores are computed in float32 or better, whatever the inputs are.
    """
    exact = torch.promote_types(q.dtype, torch.float32)
    i, j = positions(q.shape[-2], k.shape[-2], q.device)
    q, k, v = q.to(exact), for_every_head(k.to(exact), q.shape[1]), for_every_head(v.to(exact), q.shape[1])
    s = scores(mechanism, mechanism.position.place(q, i), mechanism.position.place(k, j), i, j)
    alpha = mechanism.normaliser(s)
    return alpha @ mechanism.value(v), alpha
