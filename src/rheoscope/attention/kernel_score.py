"""Scores that are logarithms of kernels: under softmax, weights are the kernel itself over its sum (Nadaraya-Watson)."""

from dataclasses import dataclass, replace

import torch

from rheoscope.attention import gpu_math
from rheoscope.attention.distances import distances, pull_difference
from rheoscope.attention.dot_form import Fold, Pointwise
from rheoscope.attention.feature_maps import Identity
from rheoscope.attention.score import Flops, Pulled, Score
from rheoscope.shapes import Keys, Queries, Scores

SQUARED = Fold(Identity(), Identity(), 2.0, 1.0)
"""-|q - k|^2."""


@dataclass(frozen=True, eq=False)
class Laplace(Score):
    """f(q, k) = -scale |q - k|, the logarithm of the (rotation-invariant) Laplace kernel exp(-scale |q - k|)."""

    scale: float = 1.0

    bilinear = None
    linear_in_keys = False

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return -self.scale * distances(q, k)

    def pull(self, q: Queries, k: Keys, r: Scores) -> Pulled:
        gap = distances(q, k)
        slope = torch.where(gap > 0, -self.scale * r / gap.clamp(min=torch.finfo(gap.dtype).tiny), 0)
        return *pull_difference(q, k, slope), {}

    def pointwise(self, width: int) -> Pointwise:
        scale = self.scale
        return Pointwise(SQUARED, lambda s: -scale * gpu_math.root(-s))

    @property
    def per_distance(self) -> float:
        return self.scale

    def of_heads(self, some: list[int]) -> "Laplace":
        return self

    def flops(self, d: int) -> Flops:
        return Flops(2 * d)

    def scaled(self, by: float) -> "Laplace":
        return self


@dataclass(frozen=True, eq=False)
class Polynomial(Score):
    """f(q, k) = log (scale q.k + offset)^degree, degree even so that the kernel is nowhere negative.

    Where the kernel is exactly 0 the score is -inf and the weight 0, as if the key were forbidden.
    """

    degree: int = 2
    scale: float | None = None
    offset: float = 1.0

    bilinear = None
    linear_in_keys = False

    def _scaled(self, width: int) -> float:
        return width**-0.5 if self.scale is None else self.scale

    def _root(self, q: Queries, k: Keys) -> Scores:
        return q @ k.mT * self._scaled(k.shape[-1]) + self.offset

    def __call__(self, q: Queries, k: Keys) -> Scores:
        root = self._root(q, k)
        zero = root == 0
        return (self.degree * torch.where(zero, 1, root).abs().log()).masked_fill(zero, -torch.inf)

    def pull(self, q: Queries, k: Keys, r: Scores) -> Pulled:
        root = self._root(q, k)
        zero = root == 0
        slope = torch.where(zero, 0, self.degree * self._scaled(k.shape[-1]) * r / torch.where(zero, 1, root))
        return slope @ k, slope.mT @ q, {}

    def pointwise(self, width: int) -> Pointwise:
        fold = Fold(SQUARED.phi, SQUARED.psi, self._scaled(width))
        degree, offset = self.degree, self.offset
        return Pointwise(fold, lambda s: degree * gpu_math.log(torch.abs(s + offset)))

    def of_heads(self, some: list[int]) -> "Polynomial":
        return self

    def flops(self, d: int) -> Flops:
        return Flops(2 * d)

    def scaled(self, by: float) -> "Polynomial":
        return replace(self, scale=by) if self.scale is None else self
