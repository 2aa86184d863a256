"""softmax(s)_j = e^{s_j} / sum_l e^{s_l}."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.normaliser.domain import Fused, Normaliser, Pulled, softmax, softmax_pull
from rheoscope.attention.normaliser.dropped import Dropped
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.shapes import Scores, Weights


@dataclass(frozen=True, eq=False)
class Softmax(Normaliser):
    """The weights of the entropy-regularised best key: positive, summing to 1, blind to shifts of a row."""

    shift_invariant: ClassVar[bool] = True
    sums_to_one: ClassVar[bool] = True
    fused = Fused()

    def __call__(self, s: Scores) -> Weights:
        return softmax(s)

    def pull(self, s: Scores, a: Weights, d: Weights) -> Pulled:
        return softmax_pull(a, d), {}

    def log_total(self, total: Float[Tensor, "b h m 1"]) -> Float[Tensor, "b h m 1"]:
        return total

    def with_sink(self, sink: Float[Tensor, " h"]) -> Sink:
        return Sink(sink)

    def dropping(self, share: float) -> Dropped:
        return Dropped(share)

    def of_heads(self, some: list[int]) -> "Softmax":
        return self
