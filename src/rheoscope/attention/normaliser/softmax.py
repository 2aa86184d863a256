"""softmax(s)_j = e^{s_j} / sum_l e^{s_l}."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from rheoscope.attention.normaliser.domain import Normaliser, Pulled, softmax_pull
from rheoscope.shapes import Scores, Weights


def softmax(s: Scores) -> Weights:
    """Softmax along the last axis; a row of -inf gives zeros, and zero gradients, instead of NaN."""
    empty = (s == -torch.inf).all(-1, keepdim=True)
    return torch.where(empty, 0, torch.where(empty, 0, s).softmax(-1))


@dataclass(frozen=True, eq=False)
class Softmax(Normaliser):
    """The weights of the entropy-regularised best key: positive, summing to 1, blind to shifts of a row."""

    shift_invariant: ClassVar[bool] = True

    def __call__(self, s: Scores) -> Weights:
        return softmax(s)

    def pull(self, s: Scores, a: Weights, d: Weights) -> Pulled:
        return softmax_pull(a, d), {}
