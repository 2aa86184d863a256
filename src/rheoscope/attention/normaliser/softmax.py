"""Softmax, softmax(s)_j = e^{s_j} / sum_l e^{s_l}."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.normaliser.domain import FusedSoftmax, Normaliser, Pullback, softmax, softmax_pullback
from rheoscope.attention.normaliser.dropped import SoftmaxDropout
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.shapes import Scores, Weights


@dataclass(frozen=True, eq=False)
class Softmax(Normaliser):
    """The entropy-regularised argmax: positive weights that sum to 1 and are invariant to shifts of a row."""

    is_shift_invariant: ClassVar[bool] = True
    sums_to_one: ClassVar[bool] = True
    fused_softmax = FusedSoftmax()

    def __call__(self, s: Scores) -> Weights:
        return softmax(s)

    def pullback(self, s: Scores, a: Weights, d: Weights) -> Pullback:
        return softmax_pullback(a, d), {}

    def log_denominator(self, log_sum: Float[Tensor, "b h m 1"]) -> Float[Tensor, "b h m 1"]:
        return log_sum

    def with_sink(self, sink: Float[Tensor, " h"]) -> Sink:
        return Sink(sink)

    def with_dropout(self, probability: float) -> SoftmaxDropout:
        return SoftmaxDropout(probability)

    def select_heads(self, heads: list[int]) -> "Softmax":
        return self
