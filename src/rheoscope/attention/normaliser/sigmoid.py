"""sigmoid(s + bias): every key on its own, no competition (arXiv:2409.04431, where bias = -log n)."""

from dataclasses import dataclass

import torch

from rheoscope.attention.normaliser.domain import Normaliser, Pulled, Tiled
from rheoscope.shapes import Scores, Weights


@dataclass(frozen=True, eq=False)
class Sigmoid(Normaliser):
    """Each weight in (0, 1) by itself; rows sum to anything up to the number of keys."""

    bias: float = 0.0

    def __call__(self, s: Scores) -> Weights:
        return torch.sigmoid(s + self.bias)

    def pull(self, s: Scores, a: Weights, d: Weights) -> Pulled:
        return d * a * (1 - a), {}

    @property
    def tiled(self) -> Tiled:
        return Tiled("sigmoid", self.bias)

    def of_heads(self, some: list[int]) -> "Sigmoid":
        return self
