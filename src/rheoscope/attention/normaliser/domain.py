"""What a normaliser is, and where it is defined."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.part import Part
from rheoscope.shapes import RheoscopeError, Scores, Weights

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


class Fused(NamedTuple):
    """A normaliser as a fused softmax kernel knows it: one further key of score `sink`, a share of weights `dropped`."""

    sink: Float[Tensor, " h"] | float | None = None
    dropped: float = 0.0

    @property
    def bare(self) -> bool:
        """Softmax and nothing else."""
        return self.sink is None and not self.dropped


class Tiled(NamedTuple):
    """A normaliser as our own kernels for a GPU know it: the name of a kernel, and the number that it takes."""

    kernel: str
    number: float = 0.0


class Normaliser(Part, ABC):
    """weights = nu(scores), row by row; a score of -inf marks a forbidden key and gets weight exactly 0.

    `pull(s, a, d)` is the closed-form derivative: from the scores s, the weights a = nu(s) and the gradient d of the
    weights to the gradient R of the scores (the reversed attention map), with the gradients of the normaliser's own
    tensors. `shift_invariant`: a constant added to a row of scores changes nothing. `rowwise`: a row of weights depends on
    its row of scores alone, so rows can be computed in any order. `sums_to_one`: so does every row that is permitted a key.
    `divides_by_sum`: weights are scores over their sum and nothing else, so scores must not be negative.
    """

    domain: ClassVar[Domain] = Domain()
    shift_invariant: ClassVar[bool] = False
    rowwise: ClassVar[bool] = True
    sums_to_one: ClassVar[bool] = False
    divides_by_sum: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, s: Scores) -> Weights: ...

    def pull(self, s: Scores, a: Weights, d: Weights) -> Pulled:
        raise self.untold("pull", "what its gradient is")

    @property
    def fused(self) -> Fused | None:
        """How a fused softmax kernel computes it; None where none does."""
        return None

    @property
    def tiled(self) -> Tiled | None:
        """Which of our own kernels for a GPU computes it; None where none does."""
        return None

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes along which scores are normalised in turn, in the log domain; none where weights are not made so."""
        return ()

    @property
    def mixture(self) -> tuple[float, float, float] | None:
        """alpha, beta, gamma where weights are alpha I + beta softmax(s) - gamma (the mean of permitted keys)."""
        return None

    def log_total(self, total: Float[Tensor, "b h m 1"]) -> Float[Tensor, "b h m 1"]:
        """log of what softmax divides by, from log sum_j e^{s_j}."""
        raise RheoscopeError(
            f"{type(self).__name__} is no softmax of scores, so it has no such sum; type Softmax() or Sink()"
        )

    def with_sink(self, sink: Float[Tensor, " h"]) -> "Normaliser":
        """The same with one further key of score `sink` and value 0 in every row."""
        name = type(self).__name__
        raise RheoscopeError(
            f"attention sinks belong to softmax, {name} has no place for them; type mechanism('scaled_dot')"
        )

    def dropping(self, share: float) -> "Normaliser":
        """The same with a random share of its weights dropped."""
        raise RheoscopeError(f"weights of a softmax are dropped, got {type(self).__name__}; type attention_dropout=0")


def permitted(s: Scores) -> Float[Tensor, "b h m n"]:
    """1 where a key is permitted, 0 where its score is -inf, in the scores' dtype."""
    return (s > -torch.inf).to(s.dtype)


def softmax_pull(a: Weights, d: Weights) -> Scores:
    """R = a (d - sum_j a_j d_j): the derivative of softmax; rows of R sum to (1 - sum a) times that mean."""
    if a.is_cuda and not (torch.is_grad_enabled() and (a.requires_grad or d.requires_grad)):
        return torch._softmax_backward_data(d, a, -1, a.dtype)  # the same, in one pass
    return a * (d - (a * d).sum(-1, keepdim=True))


def softmax(s: Scores) -> Weights:
    """Softmax along the last axis; a row of -inf gives zeros, and zero gradients, instead of NaN."""
    if not s.shape[-1]:
        return s.softmax(-1)
    empty = s.detach().amax(-1, keepdim=True) == -torch.inf
    if not (torch.is_grad_enabled() and s.requires_grad):  # in fewer passes
        return torch.where(empty, 0, s.softmax(-1))
    return torch.where(empty, 0, s).softmax(-1) * ~empty
