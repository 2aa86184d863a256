"""s_j / sum_l s_l for non-negative scores: linear attention (arXiv:2006.16236)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from rheoscope.attention.normaliser.domain import GpuKernel, Normaliser, Pullback
from rheoscope.shapes import Scores, Weights


@dataclass(frozen=True, eq=False)
class DivideBySum(Normaliser):
    """Divides by the sum, so o(q) = phi(q) (sum_j phi(k_j) v_j) / phi(q) (sum_j phi(k_j)): O(N)."""

    divides_by_sum: ClassVar[bool] = True
    gpu_kernel = GpuKernel("linear")

    def __call__(self, s: Scores) -> Weights:
        s = s.masked_fill(s == -torch.inf, 0)
        total = s.sum(-1, keepdim=True)
        return s / torch.where(total == 0, 1, total)

    def pullback(self, s: Scores, a: Weights, d: Weights) -> Pullback:
        is_allowed = s > -torch.inf
        total = s.masked_fill(~is_allowed, 0).sum(-1, keepdim=True)
        return is_allowed * (d - (a * d).sum(-1, keepdim=True)) / torch.where(total == 0, 1, total), {}

    def select_heads(self, heads: list[int]) -> "DivideBySum":
        return self
