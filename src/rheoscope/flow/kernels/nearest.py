"""A Triton kernel for the nearest neighbours of every row, from inner products.

A program reads one row once and keeps its distances in registers.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor


@triton.jit
@no_type_check
def nearest_kernel(
    INNER, SQUARES, VALID, NEAREST, n, rounding, K: tl.constexpr, GAPS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    cloud_start, j = row // n * n, tl.arange(0, BLOCK)
    is_candidate = (j < n) & (j != row % n)
    if GAPS:
        is_candidate = is_candidate & (tl.load(VALID + cloud_start + j, mask=j < n, other=0) != 0)
    square_sum = tl.load(SQUARES + row) + tl.load(SQUARES + cloud_start + j, mask=is_candidate, other=0.0)
    squared_distance = square_sum - 2.0 * tl.load(INNER + row * n + j, mask=is_candidate, other=0.0)
    remaining = tl.where(
        is_candidate, tl.where(squared_distance > rounding * square_sum, squared_distance, 0.0), float("inf")
    )
    for t in tl.static_range(K):
        smallest = tl.min(remaining, 0)
        winner = tl.min(tl.where(remaining == smallest, j, BLOCK), 0)
        tl.store(NEAREST + row * K + t, tl.minimum(winner, n - 1))
        remaining = tl.where(j == winner, float("inf"), remaining)


def nearest(
    inner: Float[Tensor, "b n n"], k: int, valid: Bool[Tensor, "b n"] | None, rounding: float
) -> Int[Tensor, "b n k"]:
    """The k nearest other tokens of every token, nearest first. Of equally near tokens the earlier comes first."""
    b, n, _ = inner.shape
    neighbours = torch.empty(b, n, k, dtype=torch.int64, device=inner.device)
    block, squares = triton.next_power_of_2(n), inner.diagonal(dim1=-2, dim2=-1).contiguous()
    with torch.cuda.device_of(inner):
        nearest_kernel[b * n,](
            inner.contiguous(), squares, squares if valid is None else valid.contiguous(), neighbours, n, rounding,
            K=k, GAPS=valid is not None, BLOCK=block, num_warps=max(1, min(16, block // 512)),
        )  # fmt: skip
    return neighbours
