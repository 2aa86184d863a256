"""What a softmax divides by, ln sum_j e^{s_ij} of every query, and the average of the keys under its weights: its gradient by the query.

One pass over tiles of scores, as exact as the inputs: of float32 every product is made from three parts.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.kernels.tiles import (
    LOG2E,
    Tiles,
    head,
    kernel,
    keys_of,
    kind_of,
    launch,
    permitted,
    precision,
    store,
    strides,
    tile,
)

TILES = {
    "half": [Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 2)],
    "wide": [Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 2)],
    "single": [Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 1)],
}
FAR = tl.constexpr(-1e30)


@triton.jit
@no_type_check
def further(
    top, mass, acc, q, k, sk, i, low, high, M, N, a,
    CAUSAL: tl.constexpr, AVERAGED: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The running maximum, the sum of e^{s - maximum} and that of e^{s - maximum} k, over keys low..high."""
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        keys = tile(k, j, sk, N, D, MASKED)
        z = tl.dot(q, tl.trans(keys), input_precision=PRECISION) * a
        if MASKED:
            z = tl.where(permitted(i[:, None], j[None, :], M, N, CAUSAL), z, FAR)
        higher = tl.maximum(top, tl.max(z, 1))
        e, shrink = tl.exp2(z - higher[:, None]), tl.exp2(top - higher)
        mass = mass * shrink + tl.sum(e, 1)
        if AVERAGED:
            acc = tl.dot(e.to(keys.dtype), keys, acc * shrink[:, None], input_precision=PRECISION)
        top = higher
    return top, mass, acc


@kernel
@no_type_check
def total(
    Q, K, TOTAL, OUT, qb0, qh0, qm, kb0, kh0, kn, H, M, N, a,
    CAUSAL: tl.constexpr, AVERAGED: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # the longest rows first
    i = start + tl.arange(0, BLOCK_M)
    q, k = tile(head(Q, at, H, qb0, qh0), i, qm, M, D, True), head(K, at, H, kb0, kh0)
    whole, last = keys_of(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    top, mass = tl.full([BLOCK_M], FAR, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    top, mass, acc = further(top, mass, acc, q, k, kn, i, 0, whole, M, N, a,
                             CAUSAL, AVERAGED, PRECISION, D, BLOCK_N, False)  # fmt: skip
    top, mass, acc = further(top, mass, acc, q, k, kn, i, whole, last, M, N, a,
                             CAUSAL, AVERAGED, PRECISION, D, BLOCK_N, True)  # fmt: skip
    tl.store(TOTAL + at.to(tl.int64) * M + i, (top + tl.log2(mass)) * 0.6931471805599453, mask=i < M)
    if AVERAGED:
        store(OUT + at.to(tl.int64) * M * D, i, M, acc / mass[:, None], D)


def log_totals(
    q: Float[Tensor, "b h m d"], k: Float[Tensor, "b h n d"], scale: float, causal: bool, averaged: bool
) -> tuple[Float[Tensor, "b h m"], Float[Tensor, "b h averaged d"]]:
    """ln sum_j e^{scale q_i.k_j} over the keys that a query sees, and the average of these keys (empty where it is not asked)."""
    (b, h, m, d), n = q.shape, k.shape[-2]
    found = torch.empty(b, h, m, dtype=torch.float32, device=q.device)
    out = torch.empty(b, h, m if averaged else 0, d, dtype=torch.float32, device=q.device)
    launch(
        total,
        TILES[kind_of(q)],
        lambda t: (triton.cdiv(m, t.BLOCK_M), b * h),
        *(q, k, found, out, *strides(q, k), h, m, n, scale * LOG2E),
        CAUSAL=causal,
        AVERAGED=averaged,
        PRECISION=precision(q),
        D=d,
    )
    return found, out
