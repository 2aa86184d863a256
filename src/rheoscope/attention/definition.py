"""The definition of attention as five parts, and its reference implementation.

    o(q) = sum_j alpha_j g(v_j),   alpha = nu( f(q, k_1) + b_1, …, f(q, k_n) + b_n ),   b_j = -inf at masked keys j

A `Definition` holds the five parts (score f, mask, position, normaliser nu, value map g) in one frozen dataclass.
`reference_attention` evaluates the formula and is the ground truth for every lowering. This file does not choose an
implementation: lowerings read a definition, and `Mechanism` is a definition that can be called.
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
from rheoscope.attention.parameters import Structure, structure, with_fields
from rheoscope.attention.position import NoPosition, Position
from rheoscope.attention.score import Gram, Score
from rheoscope.shapes import KeyPositions, Keys, Outputs, Queries, QueryPositions, Scores, Weights

MaskLike = Mask | str | Tensor | None
DefinitionType = TypeVar("DefinitionType", bound="Definition")


@dataclass(frozen=True, eq=False)
class Definition(ABC):  # noqa: B024 (abstract: instantiate `Mechanism`)
    """The five parts of a mechanism."""

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
        """Whether this is scaled dot-product attention without position or value map, which every fused kernel computes."""
        fused_softmax = self.normaliser.fused_softmax
        is_plain_softmax = fused_softmax is not None and fused_softmax.is_plain
        return is_plain_softmax and self.score.is_scaled_dot and self.value.is_identity and self.position.is_trivial

    @cached_property
    def structure(self) -> Structure:
        """Everything except the tensor values. Checks and the choice of a lowering may depend on it."""
        return structure(self)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles contain the five parts and no cached values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def with_mask(self: DefinitionType, mask: MaskLike) -> DefinitionType:
        """The same mechanism restricted to the pairs that `mask` also allows."""
        return self if mask is None else with_fields(self, mask=self.mask & as_mask(mask))

    def select_heads(self: DefinitionType, heads: list[int]) -> DefinitionType:
        """The mechanism restricted to some query heads."""
        return replace(self, **{field.name: getattr(self, field.name).select_heads(heads) for field in fields(self)})


def query_key_positions(m: int, n: int, device: torch.device | None = None) -> tuple[QueryPositions, KeyPositions]:
    """Positions of m queries and n keys; the last query is at the position of the last key."""
    return torch.arange(n - m, n, device=device), torch.arange(n, device=device)


def repeat_kv_heads(x: Tensor, n_heads: int) -> Tensor:
    """Key/value heads repeated so that query head h uses head h // (heads / groups)."""
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


def masked_scores(mechanism: Definition, q: Queries, k: Keys, i: QueryPositions, j: KeyPositions) -> Scores:
    """f(q_i, k_j) + b_ij of position-encoded queries and keys at positions i and j; -inf at masked pairs."""
    s = mechanism.score(q, k)
    bias = mechanism.position.bias(i, j)
    s = s if bias is None else s + bias.to(s.dtype)
    return s.masked_fill(~mechanism.mask(i, j), -torch.inf)


def reference_attention(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> tuple[Outputs, Weights]:
    """Evaluate the definition: encode positions, score, mask, normalise, average. Returns outputs and weights.

    Scores are computed in float32 or better, whatever the dtype of the inputs.
    """
    compute_dtype = torch.promote_types(q.dtype, torch.float32)
    i, j = query_key_positions(q.shape[-2], k.shape[-2], q.device)
    q, k, v = (
        q.to(compute_dtype),
        repeat_kv_heads(k.to(compute_dtype), q.shape[1]),
        repeat_kv_heads(v.to(compute_dtype), q.shape[1]),
    )
    s = masked_scores(mechanism, mechanism.position.encode(q, i), mechanism.position.encode(k, j), i, j)
    alpha = mechanism.normaliser(s)
    return alpha @ mechanism.value(v), alpha
