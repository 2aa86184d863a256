"""Scores that are logarithms of kernels, so that softmax yields Nadaraya-Watson weights."""

from dataclasses import dataclass, replace

import torch

from rheoscope.attention import gpu_math
from rheoscope.attention.distances import difference_pullback, pairwise_distances
from rheoscope.attention.dot_form import DotMaps, PointwiseForm
from rheoscope.attention.feature_maps import Identity
from rheoscope.attention.score import Flops, Pullback, Score
from rheoscope.shapes import Keys, Queries, Scores

NEGATIVE_SQUARED_DISTANCE = DotMaps(Identity(), Identity(), 2.0, 1.0)
"""-|q - k|^2."""


@dataclass(frozen=True, eq=False)
class Laplace(Score):
    """f(q, k) = -scale |q - k|, the logarithm of the (rotation-invariant) Laplace kernel exp(-scale |q - k|)."""

    scale: float = 1.0

    bilinear_maps = None
    is_linear_in_keys = False

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return -self.scale * pairwise_distances(q, k)

    def pullback(self, q: Queries, k: Keys, r: Scores) -> Pullback:
        distance = pairwise_distances(q, k)
        slope = torch.where(distance > 0, -self.scale * r / distance.clamp(min=torch.finfo(distance.dtype).tiny), 0)
        return *difference_pullback(q, k, slope), {}

    def pointwise_form(self, width: int) -> PointwiseForm:
        scale = self.scale
        return PointwiseForm(NEGATIVE_SQUARED_DISTANCE, lambda s: -scale * gpu_math.sqrt(-s))

    @property
    def distance_slope(self) -> float:
        return self.scale

    def select_heads(self, heads: list[int]) -> "Laplace":
        return self

    def flops(self, d: int) -> Flops:
        return Flops(2 * d)

    def with_model_scale(self, scale: float) -> "Laplace":
        return self


@dataclass(frozen=True, eq=False)
class Polynomial(Score):
    """f(q, k) = log (scale q.k + offset)^degree, with an even degree so that the kernel is never negative.

    Where the kernel is exactly 0, the score is -inf and the weight 0, as for a masked key.
    """

    degree: int = 2
    scale: float | None = None
    offset: float = 1.0

    bilinear_maps = None
    is_linear_in_keys = False

    def _scale_or_default(self, width: int) -> float:
        return width**-0.5 if self.scale is None else self.scale

    def _base(self, q: Queries, k: Keys) -> Scores:
        return q @ k.mT * self._scale_or_default(k.shape[-1]) + self.offset

    def __call__(self, q: Queries, k: Keys) -> Scores:
        base = self._base(q, k)
        is_zero = base == 0
        return (self.degree * torch.where(is_zero, 1, base).abs().log()).masked_fill(is_zero, -torch.inf)

    def pullback(self, q: Queries, k: Keys, r: Scores) -> Pullback:
        base = self._base(q, k)
        is_zero = base == 0
        slope = torch.where(
            is_zero, 0, self.degree * self._scale_or_default(k.shape[-1]) * r / torch.where(is_zero, 1, base)
        )
        return slope @ k, slope.mT @ q, {}

    def pointwise_form(self, width: int) -> PointwiseForm:
        dot_maps = DotMaps(NEGATIVE_SQUARED_DISTANCE.phi, NEGATIVE_SQUARED_DISTANCE.psi, self._scale_or_default(width))
        degree, offset = self.degree, self.offset
        return PointwiseForm(dot_maps, lambda s: degree * gpu_math.log(torch.abs(s + offset)))

    def select_heads(self, heads: list[int]) -> "Polynomial":
        return self

    def flops(self, d: int) -> Flops:
        return Flops(2 * d)

    def with_model_scale(self, scale: float) -> "Polynomial":
        return replace(self, scale=scale) if self.scale is None else self
