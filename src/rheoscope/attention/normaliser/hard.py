"""Hardmax: all weight on the best key, the limit of softmax at temperature 0."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from rheoscope.attention.normaliser.domain import Domain, Normaliser
from rheoscope.shapes import Scores, Weights


@dataclass(frozen=True, eq=False)
class Hardmax(Normaliser):
    """Ties share the weight equally, as in the limit; there is no gradient."""

    domain: ClassVar[Domain] = Domain(is_differentiable=False)
    is_shift_invariant: ClassVar[bool] = True
    sums_to_one: ClassVar[bool] = True

    def __call__(self, s: Scores) -> Weights:
        is_best = ((s == s.amax(-1, keepdim=True)) & (s > -torch.inf)).to(s.dtype)
        return is_best / is_best.sum(-1, keepdim=True).clamp(min=1)

    def select_heads(self, heads: list[int]) -> "Hardmax":
        return self
