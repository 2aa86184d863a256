"""Softmax with a sink, e^{s_j} / (e^{sink} + sum_l e^{s_l}); sink = 0 is "softmax-1"."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.feature_maps import index_heads
from rheoscope.attention.normaliser.domain import FusedSoftmax, Normaliser, Pullback, softmax_pullback
from rheoscope.shapes import Scores, Weights


@dataclass(frozen=True, eq=False)
class Sink(Normaliser):
    """An extra key with score `sink` and value 0 in every row: attention x sigmoid(logsumexp(s) - sink)."""

    sink: Float[Tensor, " h"] | float = 0.0

    def _sink_column(self, s: Scores) -> Float[Tensor, "b h m 1"]:
        sink = torch.as_tensor(self.sink, dtype=s.dtype, device=s.device).reshape(-1, 1, 1)
        return sink.expand(*s.shape[:-1], 1)

    @property
    def fused_softmax(self) -> FusedSoftmax:
        return FusedSoftmax(sink=self.sink)

    def __call__(self, s: Scores) -> Weights:
        return torch.cat([s, self._sink_column(s)], -1).softmax(-1)[..., :-1]

    def pullback(self, s: Scores, a: Weights, d: Weights) -> Pullback:
        r = softmax_pullback(a, d)
        if not isinstance(self.sink, Tensor):
            return r, {}
        sink_weight = 1 - a.sum(-1, keepdim=True)
        return r, {"sink": (-sink_weight * (a * d).sum(-1, keepdim=True)).sum((0, -2, -1)).sum_to_size(self.sink.shape)}

    def log_denominator(self, log_sum: Float[Tensor, "b h m 1"]) -> Float[Tensor, "b h m 1"]:
        return torch.logaddexp(log_sum, self._sink_column(log_sum))

    def with_sink(self, sink: Float[Tensor, " h"]) -> "Sink":
        return replace(self, sink=sink)

    def select_heads(self, heads: list[int]) -> "Sink":
        return replace(self, sink=index_heads(self.sink, heads, 0)) if isinstance(self.sink, Tensor) else self
