"""Softmax with a sink: e^{s_j} / (e^{sink} + sum_l e^{s_l}). With sink = 0 it is "softmax-1", which may attend to nothing."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.feature_maps import of_heads
from rheoscope.attention.normaliser.domain import Fused, Normaliser, Pulled, softmax_pull
from rheoscope.shapes import Scores, Weights


@dataclass(frozen=True, eq=False)
class Sink(Normaliser):
    """One further key of score `sink` and value 0 in every row; = attention x sigmoid(logsumexp(s) - sink)."""

    sink: Float[Tensor, " h"] | float = 0.0

    def _column(self, s: Scores) -> Float[Tensor, "b h m 1"]:
        sink = torch.as_tensor(self.sink, dtype=s.dtype, device=s.device).reshape(-1, 1, 1)
        return sink.expand(*s.shape[:-1], 1)

    @property
    def fused(self) -> Fused:
        return Fused(sink=self.sink)

    def __call__(self, s: Scores) -> Weights:
        return torch.cat([s, self._column(s)], -1).softmax(-1)[..., :-1]

    def pull(self, s: Scores, a: Weights, d: Weights) -> Pulled:
        r = softmax_pull(a, d)
        if not isinstance(self.sink, Tensor):
            return r, {}
        to_sink = 1 - a.sum(-1, keepdim=True)
        return r, {"sink": (-to_sink * (a * d).sum(-1, keepdim=True)).sum((0, -2, -1)).sum_to_size(self.sink.shape)}

    def log_total(self, total: Float[Tensor, "b h m 1"]) -> Float[Tensor, "b h m 1"]:
        return torch.logaddexp(total, self._column(total))

    def with_sink(self, sink: Float[Tensor, " h"]) -> "Sink":
        return replace(self, sink=sink)

    def of_heads(self, some: list[int]) -> "Sink":
        return replace(self, sink=of_heads(self.sink, some, 0)) if isinstance(self.sink, Tensor) else self
