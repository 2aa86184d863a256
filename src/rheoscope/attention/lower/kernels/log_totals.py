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
    TileConfig,
    dot_precision,
    head_ptr,
    is_allowed,
    kernel,
    key_range,
    launch,
    load_rows,
    store_rows,
    strides,
    tile_key,
)

FORWARD_TILES = {
    "half": [TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)],
    "wide": [TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)],
    "single": [TileConfig(64, 32, 4, 2), TileConfig(32, 32, 4, 1)],
}
MASKED_SCORE = tl.constexpr(-1e30)


@triton.jit
@no_type_check
def forward_pass(
    row_max, exp_sum, acc, q, k, sk, i, low, high, M, N, a,
    CAUSAL: tl.constexpr, AVERAGED: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The running maximum, the sum of e^{s - maximum} and that of e^{s - maximum} k, over keys low..high."""
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        keys = load_rows(k, j, sk, N, D, MASKED)
        z = tl.dot(q, tl.trans(keys), input_precision=PRECISION) * a
        if MASKED:
            z = tl.where(is_allowed(i[:, None], j[None, :], M, N, CAUSAL), z, MASKED_SCORE)
        new_max = tl.maximum(row_max, tl.max(z, 1))
        e, rescale = tl.exp2(z - new_max[:, None]), tl.exp2(row_max - new_max)
        exp_sum = exp_sum * rescale + tl.sum(e, 1)
        if AVERAGED:
            acc = tl.dot(e.to(keys.dtype), keys, acc * rescale[:, None], input_precision=PRECISION)
        row_max = new_max
    return row_max, exp_sum, acc


@kernel
@no_type_check
def forward(
    Q, K, LOG_SUM, OUT, qb0, qh0, qm, kb0, kh0, kn, H, M, N, a,
    CAUSAL: tl.constexpr, AVERAGED: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # the longest rows first
    i = start + tl.arange(0, BLOCK_M)
    q, k = load_rows(head_ptr(Q, head_index, H, qb0, qh0), i, qm, M, D, True), head_ptr(K, head_index, H, kb0, kh0)
    full_end, end = key_range(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    row_max, exp_sum = tl.full([BLOCK_M], MASKED_SCORE, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    row_max, exp_sum, acc = forward_pass(row_max, exp_sum, acc, q, k, kn, i, 0, full_end, M, N, a,
                             CAUSAL, AVERAGED, PRECISION, D, BLOCK_N, False)  # fmt: skip
    row_max, exp_sum, acc = forward_pass(row_max, exp_sum, acc, q, k, kn, i, full_end, end, M, N, a,
                             CAUSAL, AVERAGED, PRECISION, D, BLOCK_N, True)  # fmt: skip
    tl.store(LOG_SUM + head_index.to(tl.int64) * M + i, (row_max + tl.log2(exp_sum)) * 0.6931471805599453, mask=i < M)
    if AVERAGED:
        store_rows(OUT + head_index.to(tl.int64) * M * D, i, M, acc / exp_sum[:, None], D)


def row_logsumexp(
    q: Float[Tensor, "b h m d"], k: Float[Tensor, "b h n d"], scale: float, causal: bool, return_mean: bool
) -> tuple[Float[Tensor, "b h m"], Float[Tensor, "b h averaged d"]]:
    """ln sum_j e^{scale q_i.k_j} over the keys that a query sees, and the average of these keys (empty where it is not asked)."""
    (b, h, m, d), n = q.shape, k.shape[-2]
    log_sum = torch.empty(b, h, m, dtype=torch.float32, device=q.device)
    mean_key = torch.empty(b, h, m if return_mean else 0, d, dtype=torch.float32, device=q.device)
    launch(
        forward,
        FORWARD_TILES[tile_key(q)],
        lambda config: (triton.cdiv(m, config.BLOCK_M), b * h),
        *(q, k, log_sum, mean_key, *strides(q, k), h, m, n, scale * LOG2E),
        CAUSAL=causal,
        AVERAGED=return_mean,
        PRECISION=dot_precision(q),
        D=d,
    )
    return log_sum, mean_key
