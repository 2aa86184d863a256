"""Doubly stochastic attention by alternating row and column normalisation (Sinkformer, arXiv:2110.11773)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rheoscope.attention.normaliser.domain import Domain, GpuKernel, Normaliser, Pullback
from rheoscope.shapes import Scores, Weights


@dataclass(frozen=True, eq=False)
class Sinkhorn(Normaliser):
    """Softmax over rows, then `rounds` times over columns and rows, in the log domain; `rounds=0` is softmax.

    Rows sum to 1 exactly, columns in the limit. It needs square attention without a mask: under a causal mask the only
    doubly stochastic matrix is the identity.
    """

    rounds: int = 10

    domain: ClassVar[Domain] = Domain(requires_square=True, allows_masks=False)
    is_shift_invariant: ClassVar[bool] = True
    is_rowwise: ClassVar[bool] = False
    sums_to_one: ClassVar[bool] = True

    @property
    def gpu_kernel(self) -> GpuKernel:
        return GpuKernel("sinkhorn", self.rounds)

    @property
    def normalisation_axes(self) -> tuple[int, ...]:
        return (-1, *(-2, -1) * self.rounds)

    def __call__(self, s: Scores) -> Weights:
        for axis in self.normalisation_axes:
            s = s - s.logsumexp(axis, keepdim=True)
        return s.exp()

    def pullback(self, s: Scores, a: Weights, d: Weights) -> Pullback:
        log_weights: list[Tensor] = []
        for axis in self.normalisation_axes:
            s = s - s.logsumexp(axis, keepdim=True)
            log_weights.append(s)
        r = a * d
        for axis, log_weight in zip(reversed(self.normalisation_axes), reversed(log_weights), strict=True):
            r = r - torch.exp(log_weight) * r.sum(axis, keepdim=True)
        return r, {}

    def select_heads(self, heads: list[int]) -> "Sinkhorn":
        return self
