"""s_j / sum_l s_l for scores that are nowhere negative: linear attention (arXiv:2006.16236)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from rheoscope.attention.normaliser.domain import Normaliser, Pulled, Tiled
from rheoscope.shapes import Scores, Weights


@dataclass(frozen=True, eq=False)
class Linear(Normaliser):
    """Divides by the sum and nothing else, so o(q) = phi(q) (sum_j phi(k_j) v_j) / phi(q) (sum_j phi(k_j)): O(N)."""

    divides_by_sum: ClassVar[bool] = True
    tiled = Tiled("linear")

    def __call__(self, s: Scores) -> Weights:
        s = s.masked_fill(s == -torch.inf, 0)
        total = s.sum(-1, keepdim=True)
        return s / torch.where(total == 0, 1, total)

    def pull(self, s: Scores, a: Weights, d: Weights) -> Pulled:
        there = s > -torch.inf
        total = s.masked_fill(~there, 0).sum(-1, keepdim=True)
        return there * (d - (a * d).sum(-1, keepdim=True)) / torch.where(total == 0, 1, total), {}

    def of_heads(self, some: list[int]) -> "Linear":
        return self
