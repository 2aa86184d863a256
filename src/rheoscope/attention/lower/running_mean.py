"""alpha x_i + y_i - gamma (mean of x_1 … x_i) for long texts on a GPU, forward and backward, in two passes over x.

The first pass sums each chunk of tokens. The second continues from the sum of the earlier chunks inside each chunk.
`subtract_past_mean_torch` computes the same in torch.
"""

from typing import Any

import torch
from torch import Tensor


def subtract_past_mean(x: Tensor, y: Tensor, alpha: float, gamma: float) -> Tensor:
    """The result (b, h, n, d) in the dtype of x. Sums are float32, or float64 for a float64 x, which the kernels do not support."""
    if x.device.type != "cuda" or x.dtype is torch.float64 or torch.compiler.is_compiling():
        return subtract_past_mean_torch(x, y, alpha, gamma)
    return _SubtractPastMean.apply(x, y, alpha, gamma)


def subtract_past_mean_torch(x: Tensor, y: Tensor, alpha: float, gamma: float) -> Tensor:
    compute_dtype = torch.promote_types(x.dtype, torch.float32)
    n_past = torch.arange(1, x.shape[-2] + 1, device=x.device)[:, None]
    return alpha * x + y - gamma * (x.cumsum(-2, dtype=compute_dtype) / n_past).to(x.dtype)


class _SubtractPastMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, alpha: float, gamma: float) -> Tensor:
        from rheoscope.attention.lower.kernels.running_mean import subtract_running_mean

        ctx.alpha, ctx.gamma = alpha, gamma
        return subtract_running_mean(x.contiguous(), y.contiguous(), alpha, gamma, reverse=False)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        from rheoscope.attention.lower.kernels.running_mean import subtract_running_mean

        dx = (
            subtract_running_mean(g.contiguous(), None, ctx.alpha, ctx.gamma, reverse=True)
            if ctx.needs_input_grad[0]
            else None
        )
        return dx, g if ctx.needs_input_grad[1] else None, None, None
