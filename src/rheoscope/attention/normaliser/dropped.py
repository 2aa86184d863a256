"""softmax(s) with a random share of the weights dropped and the rest scaled up: dropout inside attention, for training."""

from dataclasses import dataclass
from typing import ClassVar

from torch.nn.functional import dropout

from rheoscope.attention.normaliser.domain import Fused, Normaliser, Pulled, softmax
from rheoscope.shapes import RheoscopeError, Scores, Weights


@dataclass(frozen=True, eq=False)
class Dropped(Normaliser):
    """Each weight is 0 with probability `share`, else divided by 1 − share: softmax on average.

    Not `rowwise`: a lowering that computes rows twice would draw twice.
    """

    share: float = 0.1

    shift_invariant: ClassVar[bool] = True
    rowwise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise RheoscopeError(f"the share of dropped weights lies in [0, 1), got {self.share!r}; type Dropped(0.1)")

    def __call__(self, s: Scores) -> Weights:
        return dropout(softmax(s), self.share)

    def pull(self, s: Scores, a: Weights, d: Weights) -> Pulled:
        raise RheoscopeError(
            "weights that are dropped anew at every call have no gradient in closed form; take Softmax()"
        )

    @property
    def fused(self) -> Fused:
        return Fused(dropped=self.share)

    def of_heads(self, some: list[int]) -> "Dropped":
        return self
