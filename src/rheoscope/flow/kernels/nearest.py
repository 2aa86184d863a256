"""The nearest of every row, from inner products: a row to a program, read once, distances in registers and nowhere else."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor


@triton.jit
@no_type_check
def pick(INNER, SQUARES, THERE, NEAR, n, rounding, K: tl.constexpr, GAPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cloud, j = row // n * n, tl.arange(0, BLOCK)
    here = (j < n) & (j != row % n)
    if GAPS:
        here = here & (tl.load(THERE + cloud + j, mask=j < n, other=0) != 0)
    both = tl.load(SQUARES + row) + tl.load(SQUARES + cloud + j, mask=here, other=0.0)
    square = both - 2.0 * tl.load(INNER + row * n + j, mask=here, other=0.0)
    rest = tl.where(here, tl.where(square > rounding * both, square, 0.0), float("inf"))
    for t in tl.static_range(K):
        low = tl.min(rest, 0)
        at = tl.min(tl.where(rest == low, j, BLOCK), 0)
        tl.store(NEAR + row * K + t, tl.minimum(at, n - 1))
        rest = tl.where(j == at, float("inf"), rest)


def nearest(
    inner: Float[Tensor, "b n n"], k: int, there: Bool[Tensor, "b n"] | None, rounding: float
) -> Int[Tensor, "b n k"]:
    """The k nearest other tokens of each, the nearest first; of equally near ones the earlier."""
    b, n, _ = inner.shape
    found = torch.empty(b, n, k, dtype=torch.int64, device=inner.device)
    block, squares = triton.next_power_of_2(n), inner.diagonal(dim1=-2, dim2=-1).contiguous()
    with torch.cuda.device_of(inner):
        pick[b * n,](
            inner.contiguous(), squares, squares if there is None else there.contiguous(), found, n, rounding,
            K=k, GAPS=there is not None, BLOCK=block, num_warps=max(1, min(16, block // 512)),
        )  # fmt: skip
    return found
