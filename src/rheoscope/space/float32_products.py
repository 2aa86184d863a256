"""Products of matrices in half precision with sums in float32, which a GPU gives for the price of half precision."""

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.space.safe_arithmetic import exact


def product(a: Float[Tensor, "*b n d"], W: Float[Tensor, "d k"]) -> Float[Tensor, "*b n k"]:
    """a W, where W is rounded to the dtype of `a` and sums are in float32 or better.

    For a model in half precision nothing is lost: its weights are numbers of that precision, and so is what `View.as_read` gives.

    >>> product(torch.ones(1, 300, dtype=torch.bfloat16), torch.ones(300, 1)).item()
    300.0
    """
    W = W.to(a.dtype)
    if not a.is_cuda or a.dtype.itemsize >= 4 or (a.requires_grad and torch.is_grad_enabled()):
        return exact(a) @ exact(W)
    return torch.mm(a.reshape(-1, a.shape[-1]), W, out_dtype=torch.float32).unflatten(0, a.shape[:-1])


def inner(x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n n"]:
    """⟨x_i, x_j⟩ of all pairs, sums in float32 or better.

    >>> inner(torch.ones(1, 2, 300, dtype=torch.bfloat16)).tolist()
    [[[300.0, 300.0], [300.0, 300.0]]]
    """
    if not x.is_cuda or x.dtype.itemsize >= 4:
        return exact(x) @ exact(x).mT
    rows = x.reshape(-1, *x.shape[-2:])
    return torch.bmm(rows, rows.mT, out_dtype=torch.float32).unflatten(0, x.shape[:-2])


def weighed(weights: Float[Tensor, "*b k n"], x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b k d"]:
    """Σ_i w_i x_i of many texts, sums in float32 or better; weights rounded to bfloat16 where x is, which has their range."""
    if x.is_cuda and x.dtype == torch.bfloat16:
        w, rows = (y.reshape(-1, *y.shape[-2:]) for y in (weights.bfloat16(), x))
        return torch.bmm(w, rows, out_dtype=torch.float32).unflatten(0, x.shape[:-2])
    return weights @ x.to(weights.dtype)


def difference(x: Float[Tensor, "*b n d"], y: Float[Tensor, "*#b #n d"], dtype: torch.dtype) -> Float[Tensor, "*b n d"]:
    """x − y rounded to a dtype, in one pass.

    >>> difference(torch.ones(1, 2), torch.zeros(1, 2), torch.bfloat16).dtype
    torch.bfloat16
    """
    return torch.sub(x, y, out=torch.empty(x.shape, dtype=dtype, device=x.device)) if dtype != x.dtype else x - y
