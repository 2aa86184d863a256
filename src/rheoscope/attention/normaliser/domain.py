"""The base class of normalisers, their domain, and softmax with its derivative."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.part import MechanismPart
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError, Scores, Weights

Pullback = tuple[Tensor, dict[str, Tensor]]


@dataclass(frozen=True)
class Domain:
    """Where a mechanism is defined; outside its domain a call raises.

    `requires_square`: queries and keys are the same tokens. `allows_masks`: masks may be used. `is_differentiable`: it has
    a gradient. `has_negative_weights`: weights may be negative, so a row is not a distribution.
    """

    requires_square: bool = False
    allows_masks: bool = True
    is_differentiable: bool = True
    has_negative_weights: bool = False


class FusedSoftmax(NamedTuple):
    """A normaliser as a fused softmax kernel: an extra key with score `sink`, and a dropout probability."""

    sink: Float[Tensor, " h"] | float | None = None
    dropout: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether it is softmax without a sink or dropout."""
        return self.sink is None and not self.dropout


class GpuKernel(NamedTuple):
    """A normaliser in Rheoscope's GPU kernels: the kernel name and its numeric parameter."""

    kernel: str
    parameter: float = 0.0


class Normaliser(MechanismPart, ABC):
    """weights = nu(scores), row by row; a score of -inf marks a masked key, whose weight is exactly 0.

    `pullback(s, a, d)` is the closed-form derivative. From the scores s, the weights a = nu(s) and the gradient d of the
    weights it returns the gradient R of the scores (the reversed attention map) and the gradients of its own tensors.

    `is_shift_invariant`: adding a constant to a row of scores does not change the weights. `is_rowwise`: a row of weights
    depends only on its row of scores, so rows can be computed in any order. `sums_to_one`: every row with an allowed key
    sums to 1. `divides_by_sum`: weights are scores divided by their sum, so scores must not be negative.
    """

    domain: ClassVar[Domain] = Domain()
    is_shift_invariant: ClassVar[bool] = False
    is_rowwise: ClassVar[bool] = True
    sums_to_one: ClassVar[bool] = False
    divides_by_sum: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, s: Scores) -> Weights: ...

    def pullback(self, s: Scores, a: Weights, d: Weights) -> Pullback:
        raise self.missing_method_error("pullback", Message("its gradient"))

    @property
    def fused_softmax(self) -> FusedSoftmax | None:
        """Its form in a fused softmax kernel; None if no such kernel computes it."""
        return None

    @property
    def gpu_kernel(self) -> GpuKernel | None:
        """The GPU kernel that computes it; None if there is none."""
        return None

    @property
    def normalisation_axes(self) -> tuple[int, ...]:
        """The axes along which scores are normalised alternately in the log domain; empty for other normalisers."""
        return ()

    @property
    def mixture_coefficients(self) -> tuple[float, float, float] | None:
        """(alpha, beta, gamma) if weights are alpha I + beta softmax(s) - gamma (the mean over allowed keys); else None."""
        return None

    def log_denominator(self, log_sum: Float[Tensor, "b h m 1"]) -> Float[Tensor, "b h m 1"]:
        """The log of the softmax denominator, from log sum_j e^{s_j}."""
        raise RheoscopeError(
            Message("{normaliser} is not a softmax, so it has no log denominator", normaliser=type(self).__name__),
            Advice("replace(mechanism, normaliser=Softmax())"),
        )

    def with_sink(self, sink: Float[Tensor, " h"]) -> "Normaliser":
        """The same normaliser with an extra key of score `sink` and value 0 in every row."""
        raise RheoscopeError(
            Message("attention sinks need a softmax, got {normaliser}", normaliser=type(self).__name__),
            Advice("rs.mechanism('scaled_dot')"),
        )

    def with_dropout(self, probability: float) -> "Normaliser":
        """The same normaliser with dropout on its weights."""
        raise RheoscopeError(
            Message("attention dropout needs a softmax, got {normaliser}", normaliser=type(self).__name__),
            Advice("attention_dropout=0"),
        )


def allowed_indicator(s: Scores) -> Float[Tensor, "b h m n"]:
    """1 for an allowed key, 0 for a key with score -inf, in the dtype of the scores."""
    return (s > -torch.inf).to(s.dtype)


def softmax_pullback(a: Weights, d: Weights) -> Scores:
    """R = a (d - sum_j a_j d_j), the derivative of softmax; a row of R sums to (1 - sum a) times that mean."""
    if a.is_cuda and not (torch.is_grad_enabled() and (a.requires_grad or d.requires_grad)):
        return torch._softmax_backward_data(d, a, -1, a.dtype)  # the same formula in one pass
    return a * (d - (a * d).sum(-1, keepdim=True))


def softmax(s: Scores) -> Weights:
    """Softmax along the last axis; a row of -inf returns zeros with zero gradients instead of NaN."""
    if not s.shape[-1]:
        return s.softmax(-1)
    is_empty_row = s.detach().amax(-1, keepdim=True) == -torch.inf
    if not (torch.is_grad_enabled() and s.requires_grad):  # fewer passes over memory
        return torch.where(is_empty_row, 0, s.softmax(-1))
    return torch.where(is_empty_row, 0, s).softmax(-1) * ~is_empty_row
