"""All weight on the best key: the limit of softmax at temperature 0."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from rheoscope.attention.normaliser.domain import Domain, Normaliser
from rheoscope.shapes import Scores, Weights


@dataclass(frozen=True, eq=False)
class Hard(Normaliser):
    """Ties share equally, as they do in the limit; no gradient."""

    domain: ClassVar[Domain] = Domain(differentiable=False)
    shift_invariant: ClassVar[bool] = True
    sums_to_one: ClassVar[bool] = True

    def __call__(self, s: Scores) -> Weights:
        best = ((s == s.amax(-1, keepdim=True)) & (s > -torch.inf)).to(s.dtype)
        return best / best.sum(-1, keepdim=True).clamp(min=1)

    def of_heads(self, some: list[int]) -> "Hard":
        return self
