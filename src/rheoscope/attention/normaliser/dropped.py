"""Softmax with dropout on the weights, for training."""

from dataclasses import dataclass
from typing import ClassVar

from torch.nn.functional import dropout

from rheoscope.attention.normaliser.domain import FusedSoftmax, Normaliser, Pullback, softmax
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError, Scores, Weights


@dataclass(frozen=True, eq=False)
class SoftmaxDropout(Normaliser):
    """Each weight is 0 with probability p, else divided by 1 − p, so the expectation is softmax.

    Not row-wise: a lowering that computes rows twice would sample two different masks.
    """

    probability: float = 0.1

    is_shift_invariant: ClassVar[bool] = True
    is_rowwise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.probability < 1:
            raise RheoscopeError(
                Message("the dropout probability must lie in [0, 1), got {received!r}", received=self.probability),
                Advice("SoftmaxDropout(0.1)"),
            )

    def __call__(self, s: Scores) -> Weights:
        return dropout(softmax(s), self.probability)

    def pullback(self, s: Scores, a: Weights, d: Weights) -> Pullback:
        raise RheoscopeError(
            Message("softmax with dropout is random, so it has no closed-form gradient"),
            Advice("replace(mechanism, normaliser=Softmax())"),
        )

    @property
    def fused_softmax(self) -> FusedSoftmax:
        return FusedSoftmax(dropout=self.probability)

    def select_heads(self, heads: list[int]) -> "SoftmaxDropout":
        return self
