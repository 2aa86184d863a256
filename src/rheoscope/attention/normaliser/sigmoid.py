"""sigmoid(s + bias), independent for each key (arXiv:2409.04431, where bias = -log n)."""

from dataclasses import dataclass

import torch

from rheoscope.attention.normaliser.domain import GpuKernel, Normaliser, Pullback
from rheoscope.shapes import Scores, Weights


@dataclass(frozen=True, eq=False)
class Sigmoid(Normaliser):
    """Independent weights in (0, 1); a row may sum to anything up to the number of keys."""

    bias: float = 0.0

    def __call__(self, s: Scores) -> Weights:
        return torch.sigmoid(s + self.bias)

    def pullback(self, s: Scores, a: Weights, d: Weights) -> Pullback:
        return d * a * (1 - a), {}

    @property
    def gpu_kernel(self) -> GpuKernel:
        return GpuKernel("sigmoid", self.bias)

    def select_heads(self, heads: list[int]) -> "Sigmoid":
        return self
