"""What a normaliser is, and where it is defined."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.shapes import Scores, Weights

Pulled = tuple[Tensor, dict[str, Tensor]]


@dataclass(frozen=True)
class Domain:
    """Where a mechanism is defined; outside it refuses.

    `square`: as many queries as keys, the same tokens. `masked`: masks are allowed. `differentiable`: has a gradient.
    `signed`: weights may be negative, so they are no distribution.
    """

    square: bool = False
    masked: bool = True
    differentiable: bool = True
    signed: bool = False


@dataclass(frozen=True, eq=False)
class Normaliser:
    """weights = nu(scores), row by row; a score of -inf marks a forbidden key and gets weight exactly 0.

    `pull(s, a, d)` is the closed-form derivative: from the scores s, the weights a = nu(s) and the gradient d of the
    weights to the gradient R of the scores (the reversed attention map), with the gradients of the normaliser's own
    tensors. `shift_invariant`: a constant added to a row of scores changes nothing. `rowwise`: a row of weights depends on
    its row of scores alone, so rows can be computed in any order.
    """

    domain: ClassVar[Domain] = Domain()
    shift_invariant: ClassVar[bool] = False
    rowwise: ClassVar[bool] = True

    def __call__(self, s: Scores) -> Weights:
        raise TypeError("Normaliser is abstract: take Softmax(), Sigmoid(), …")

    def pull(self, s: Scores, a: Weights, d: Weights) -> Pulled:
        raise TypeError("Normaliser is abstract: take Softmax(), Sigmoid(), …")


def permitted(s: Scores) -> Float[Tensor, "b h m n"]:
    """1 where a key is permitted, 0 where its score is -inf, in the scores' dtype."""
    return (s > -torch.inf).to(s.dtype)


def softmax_pull(a: Weights, d: Weights) -> Scores:
    """R = a (d - sum_j a_j d_j): the derivative of softmax; rows of R sum to (1 - sum a) times that mean."""
    return a * (d - (a * d).sum(-1, keepdim=True))
