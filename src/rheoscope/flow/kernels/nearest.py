"""The nearest of every row of a table of distances, a row to a program: the row is read once and stays in registers."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor


@triton.jit
@no_type_check
def pick(D, THERE, NEAR, n, K: tl.constexpr, GAPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK)
    here = (j < n) & (j != row % n)
    if GAPS:
        here = here & (tl.load(THERE + row // n * n + j, mask=j < n, other=0) != 0)
    rest = tl.load(D + row * n + j, mask=here, other=float("inf"))
    for t in tl.static_range(K):
        low = tl.min(rest, 0)
        at = tl.min(tl.where(rest == low, j, BLOCK), 0)
        tl.store(NEAR + row * K + t, tl.minimum(at, n - 1))
        rest = tl.where(j == at, float("inf"), rest)


def nearest(d: Float[Tensor, "b n n"], k: int, there: Bool[Tensor, "b n"] | None) -> Int[Tensor, "b n k"]:
    """The k nearest other tokens of each, the nearest first; of equally near ones the earlier."""
    b, n, _ = d.shape
    found = torch.empty(b, n, k, dtype=torch.int64, device=d.device)
    block = triton.next_power_of_2(n)
    with torch.cuda.device_of(d):
        pick[b * n,](
            d.contiguous(), d if there is None else there.contiguous(), found, n,
            K=k, GAPS=there is not None, BLOCK=block, num_warps=max(1, min(16, block // 512)),
        )  # fmt: skip
    return found
