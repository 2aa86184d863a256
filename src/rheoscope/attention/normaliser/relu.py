"""max(s, 0) / (number of allowed keys): ReLU attention (arXiv:2309.08586)."""

from dataclasses import dataclass

from rheoscope.attention.normaliser.domain import GpuKernel, Normaliser, Pullback, allowed_indicator
from rheoscope.shapes import Scores, Weights


@dataclass(frozen=True, eq=False)
class ReLU(Normaliser):
    """Sparse, unbounded weights; keys do not compete."""

    gpu_kernel = GpuKernel("relu")

    def __call__(self, s: Scores) -> Weights:
        return s.relu() / allowed_indicator(s).sum(-1, keepdim=True).clamp(min=1)

    def pullback(self, s: Scores, a: Weights, d: Weights) -> Pullback:
        return d * (s > 0) / allowed_indicator(s).sum(-1, keepdim=True).clamp(min=1), {}

    def select_heads(self, heads: list[int]) -> "ReLU":
        return self
