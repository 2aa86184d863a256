"""Pairwise distances between rows, exact and differentiable more than once."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.shapes import Scores


def pairwise_distances(a: Float[Tensor, "b h m r"], b: Float[Tensor, "b h n r"]) -> Scores:
    """|a_i - b_j| from differences, without cancellation: exactly 0 with gradient 0 for equal rows."""
    return _PairwiseDistances.apply(a, b)


class _PairwiseDistances(torch.autograd.Function):
    """torch.cdist with a backward pass that can be differentiated again, which Jacobians of layers need."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        distance = torch.cdist(a.contiguous(), b.contiguous(), compute_mode="donot_use_mm_for_euclid_dist")
        ctx.save_for_backward(a, b, distance)
        return distance

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        a, b, distance = ctx.saved_tensors
        return difference_pullback(
            a, b, torch.where(distance > 0, grad_output / torch.where(distance > 0, distance, 1), 0)
        )


def difference_pullback(a: Tensor, b: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of a and b for slope_ij along a_i - b_j; those of b have the opposite sign."""
    return slope.sum(-1)[..., None] * a - slope @ b, slope.sum(-2)[..., None] * b - slope.mT @ a
