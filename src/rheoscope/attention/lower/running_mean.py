"""alpha x_i + y_i - gamma (mean of x_1 … x_i) over long texts on a GPU, forward and backward: two passes over x.

A chunk of tokens is added up first; the sums before each chunk are then few, and inside it a second pass goes on from them.
`by_torch` says what is computed.
"""

from typing import Any

import torch
from torch import Tensor


def less_past_mean(x: Tensor, y: Tensor, alpha: float, gamma: float) -> Tensor:
    """(b, h, n, d), in x's dtype with sums in float32, or in float64 for a float64 x: the kernels add in float32."""
    if x.device.type != "cuda" or x.dtype is torch.float64 or torch.compiler.is_compiling():
        return by_torch(x, y, alpha, gamma)
    return _LessPastMean.apply(x, y, alpha, gamma)


def by_torch(x: Tensor, y: Tensor, alpha: float, gamma: float) -> Tensor:
    exact = torch.promote_types(x.dtype, torch.float32)
    count = torch.arange(1, x.shape[-2] + 1, device=x.device)[:, None]
    return alpha * x + y - gamma * (x.cumsum(-2, dtype=exact) / count).to(x.dtype)


class _LessPastMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, alpha: float, gamma: float) -> Tensor:
        from rheoscope.attention.lower.kernels.running_mean import mixed

        ctx.alpha, ctx.gamma = alpha, gamma
        return mixed(x.contiguous(), y.contiguous(), alpha, gamma, ahead=False)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        from rheoscope.attention.lower.kernels.running_mean import mixed

        dx = mixed(g.contiguous(), None, ctx.alpha, ctx.gamma, ahead=True) if ctx.needs_input_grad[0] else None
        return dx, g if ctx.needs_input_grad[1] else None, None, None
