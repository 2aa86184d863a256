"""max(s, 0) / (number of permitted keys) (arXiv:2309.08586)."""

from dataclasses import dataclass

from rheoscope.attention.normaliser.domain import Normaliser, Pulled, Tiled, permitted
from rheoscope.shapes import Scores, Weights


@dataclass(frozen=True, eq=False)
class ReLU(Normaliser):
    """Sparse and without competition; not bounded above."""

    tiled = Tiled("relu")

    def __call__(self, s: Scores) -> Weights:
        return s.relu() / permitted(s).sum(-1, keepdim=True).clamp(min=1)

    def pull(self, s: Scores, a: Weights, d: Weights) -> Pulled:
        return d * (s > 0) / permitted(s).sum(-1, keepdim=True).clamp(min=1), {}

    def of_heads(self, some: list[int]) -> "ReLU":
        return self
