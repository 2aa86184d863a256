"""The distances of all pairs of rows, exact and differentiable as often as one likes."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.shapes import Scores


def distances(a: Float[Tensor, "b h m r"], b: Float[Tensor, "b h n r"]) -> Scores:
    """|a_i - b_j| from the differences themselves: no cancellation, exactly 0 for equal rows, gradient 0 there."""
    return _Distances.apply(a, b)


class _Distances(torch.autograd.Function):
    """cdist with a backward pass that can be differentiated again, as Jacobians of layers need it; its own cannot."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        far = torch.cdist(a.contiguous(), b.contiguous(), compute_mode="donot_use_mm_for_euclid_dist")
        ctx.save_for_backward(a, b, far)
        return far

    @staticmethod
    def backward(ctx: Any, pulled: Tensor) -> tuple[Tensor, Tensor]:
        a, b, far = ctx.saved_tensors
        return pull_difference(a, b, torch.where(far > 0, pulled / torch.where(far > 0, far, 1), 0))


def pull_difference(a: Tensor, b: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """sum_ij slope_ij (a_i - b_j), taken to a and, with the other sign, to b."""
    return slope.sum(-1)[..., None] * a - slope @ b, slope.sum(-2)[..., None] * b - slope.mT @ a
