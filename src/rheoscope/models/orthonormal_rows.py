"""Orthonormal rows by Cholesky QR, with a gradient in closed form."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def orthonormal_rows(V: Float[Tensor, "*lead k d"]) -> Float[Tensor, "*lead k d"]:
    """Orthonormal rows with the span of the rows of V: L⁻¹V with VVᵀ = LLᵀ, in float32 or better.

    >>> W = orthonormal_rows(torch.randn(3, 2, 5))
    >>> bool(torch.allclose(W @ W.mT, torch.eye(2).expand(3, 2, 2), atol=1e-4))
    True
    """
    with torch.autocast(V.device.type, enabled=False):
        return _OrthonormalRows.apply(V.to(torch.promote_types(V.dtype, torch.float32)))[0].to(V.dtype)


class _OrthonormalRows(torch.autograd.Function):
    """Orthonormal rows with a gradient of a few products. Autograd's own gradient would solve three triangular systems in turn.

    W = L⁻¹V    A = G Wᵀ, G the gradient of W    gradient of V: L⁻ᵀ (G − (tril A + (strict tril A)ᵀ) W)
    """

    @staticmethod
    def forward(V: Tensor) -> tuple[Tensor, Tensor]:
        L = torch.linalg.cholesky_ex(V @ V.mT).L  # no check of success, which would wait for the GPU
        eye = torch.eye(L.shape[-1], dtype=V.dtype, device=V.device)
        inverse = torch.linalg.solve_triangular(L, eye.expand_as(L), upper=False)
        return inverse @ V, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, G: Tensor, _: Tensor) -> Tensor:
        W, inverse = ctx.saved_tensors
        A = G @ W.mT
        return inverse.mT @ (G - (A.tril() + A.tril(-1).mT) @ W)
