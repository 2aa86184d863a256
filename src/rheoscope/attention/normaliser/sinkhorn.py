"""Doubly stochastic attention: rows and columns are normalised in turn (Sinkformer, arXiv:2110.11773)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rheoscope.attention.normaliser.domain import Domain, Normaliser, Pulled, Tiled
from rheoscope.shapes import Scores, Weights


@dataclass(frozen=True, eq=False)
class Sinkhorn(Normaliser):
    """Softmax over rows, then `rounds` times over columns and over rows, in the log domain; `rounds=0` is softmax.

    Rows sum to 1 exactly, columns in the limit. Square attention with full support only: under a causal mask the only
    doubly stochastic matrix is the identity.
    """

    rounds: int = 10

    domain: ClassVar[Domain] = Domain(square=True, masked=False)
    shift_invariant: ClassVar[bool] = True
    rowwise: ClassVar[bool] = False
    sums_to_one: ClassVar[bool] = True

    @property
    def tiled(self) -> Tiled:
        return Tiled("sinkhorn", self.rounds)

    @property
    def axes(self) -> tuple[int, ...]:
        return (-1, *(-2, -1) * self.rounds)

    def __call__(self, s: Scores) -> Weights:
        for axis in self.axes:
            s = s - s.logsumexp(axis, keepdim=True)
        return s.exp()

    def pull(self, s: Scores, a: Weights, d: Weights) -> Pulled:
        stages: list[Tensor] = []
        for axis in self.axes:
            s = s - s.logsumexp(axis, keepdim=True)
            stages.append(s)
        r = a * d
        for axis, stage in zip(reversed(self.axes), reversed(stages), strict=True):
            r = r - torch.exp(stage) * r.sum(axis, keepdim=True)
        return r, {}

    def of_heads(self, some: list[int]) -> "Sinkhorn":
        return self
