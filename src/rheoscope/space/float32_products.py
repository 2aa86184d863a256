"""Matrix products of half-precision numbers with float32 sums, at the speed of half precision on a GPU."""

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.space.safe_arithmetic import at_least_float32


def mixed_precision_matmul(a: Float[Tensor, "*b n d"], W: Float[Tensor, "d k"]) -> Float[Tensor, "*b n k"]:
    """a W, with W rounded to the dtype of `a` and sums in float32 or better.

    For a half-precision model this is exact: its weights, and the output of `View.to_model_precision`, have that precision.

    >>> mixed_precision_matmul(torch.ones(1, 300, dtype=torch.bfloat16), torch.ones(300, 1)).item()
    300.0
    """
    W = W.to(a.dtype)
    if not a.is_cuda or a.dtype.itemsize >= 4 or (a.requires_grad and torch.is_grad_enabled()):
        return at_least_float32(a) @ at_least_float32(W)
    return torch.mm(a.reshape(-1, a.shape[-1]), W, out_dtype=torch.float32).unflatten(0, a.shape[:-1])


def pairwise_inner(x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n n"]:
    """⟨x_i, x_j⟩ for all pairs, with sums in float32 or better.

    >>> pairwise_inner(torch.ones(1, 2, 300, dtype=torch.bfloat16)).tolist()
    [[[300.0, 300.0], [300.0, 300.0]]]
    """
    if not x.is_cuda or x.dtype.itemsize >= 4:
        return at_least_float32(x) @ at_least_float32(x).mT
    flat_x = x.reshape(-1, *x.shape[-2:])
    return torch.bmm(flat_x, flat_x.mT, out_dtype=torch.float32).unflatten(0, x.shape[:-2])


def weighted_sums(weights: Float[Tensor, "*b k n"], x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b k d"]:
    """Σ_i w_i x_i of many texts, with sums in float32 or better; for bfloat16 x the weights are rounded to bfloat16."""
    if x.is_cuda and x.dtype == torch.bfloat16:
        w, flat_x = (y.reshape(-1, *y.shape[-2:]) for y in (weights.bfloat16(), x))
        return torch.bmm(w, flat_x, out_dtype=torch.float32).unflatten(0, x.shape[:-2])
    return weights @ x.to(weights.dtype)


def rounded_difference(
    x: Float[Tensor, "*b n d"], y: Float[Tensor, "*#b #n d"], dtype: torch.dtype
) -> Float[Tensor, "*b n d"]:
    """x − y rounded to a dtype, in one pass.

    >>> rounded_difference(torch.ones(1, 2), torch.zeros(1, 2), torch.bfloat16).dtype
    torch.bfloat16
    """
    return torch.sub(x, y, out=torch.empty(x.shape, dtype=dtype, device=x.device)) if dtype != x.dtype else x - y
