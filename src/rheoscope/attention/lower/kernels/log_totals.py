"""A Triton kernel for the log-sum-exp of every query's scores and its gradient, the weighted mean of the keys.

It makes one pass over tiles of scores. With float32 inputs every product consists of three TF32 products, so the result
is as exact as the inputs.
"""

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.kernels.tile_table import tiles_for
from rheoscope.attention.lower.kernels.tiles import (
    LOG2E,
    MASKED_SCORE,
    dot_precision,
    head_rows,
    is_allowed,
    kernel,
    key_range,
    launch,
    load_rows,
    masked_vector,
    query_grid,
    store_rows,
    with_strides,
    zero_rows,
    zero_vector,
)


class Spec(NamedTuple):
    """Compile-time constants; D is the width of a row, and AVERAGED adds the mean key."""

    CAUSAL: bool
    AVERAGED: bool
    PRECISION: str
    D: int


@triton.jit
@no_type_check
def forward_pass(
    row_max, exp_sum, acc, q, i, k, low, high, M, N, a, SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr
):
    """The running maximum, sum e^{s - maximum} and sum e^{s - maximum} k, over the keys from low to high."""
    for start in range(low, high, TILE.BLOCK_N):
        j = start + tl.arange(0, TILE.BLOCK_N)
        keys = load_rows(k, j, N, SPEC.D, MASKED)
        z = tl.dot(q, tl.trans(keys), input_precision=SPEC.PRECISION) * a
        if MASKED:
            z = tl.where(is_allowed(i[:, None], j[None, :], M, N, SPEC.CAUSAL), z, MASKED_SCORE)
        new_max = tl.maximum(row_max, tl.max(z, 1))
        e, rescale = tl.exp2(z - new_max[:, None]), tl.exp2(row_max - new_max)
        exp_sum = exp_sum * rescale + tl.sum(e, 1)
        if SPEC.AVERAGED:
            acc = tl.dot(e.to(keys.dtype), keys, acc * rescale[:, None], input_precision=SPEC.PRECISION)
        row_max = new_max
    return row_max, exp_sum, acc


@kernel
@no_type_check
def forward(Q, K, LOG_SUM, OUT, H, M, N, a, SPEC: tl.constexpr, TILE: tl.constexpr):
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * TILE.BLOCK_M  # the longest rows first
    i = start + tl.arange(0, TILE.BLOCK_M)
    q, k = load_rows(head_rows(Q, head_index, H), i, M, SPEC.D, True), head_rows(K, head_index, H)
    full_end, end = key_range(start, M, N, SPEC.CAUSAL, TILE)
    row_max, exp_sum = masked_vector(TILE.BLOCK_M), zero_vector(TILE.BLOCK_M)
    acc = zero_rows(TILE.BLOCK_M, SPEC.D)
    row_max, exp_sum, acc = forward_pass(row_max, exp_sum, acc, q, i, k, 0, full_end, M, N, a, SPEC, TILE, False)
    row_max, exp_sum, acc = forward_pass(row_max, exp_sum, acc, q, i, k, full_end, end, M, N, a, SPEC, TILE, True)
    tl.store(LOG_SUM + head_index.to(tl.int64) * M + i, (row_max + tl.log2(exp_sum)) * 0.6931471805599453, mask=i < M)
    if SPEC.AVERAGED:
        store_rows(OUT + head_index.to(tl.int64) * M * SPEC.D, i, M, acc / exp_sum[:, None], SPEC.D)


def row_logsumexp(
    q: Float[Tensor, "b h m d"], k: Float[Tensor, "b h n d"], scale: float, causal: bool, return_mean: bool
) -> tuple[Float[Tensor, "b h m"], Float[Tensor, "b h averaged d"]]:
    """ln sum_j e^{scale q_i.k_j} over the keys that a query sees, and the weighted mean of these keys if requested.

    Without `return_mean` the second tensor is empty.
    """
    b, h, m, d = q.shape
    log_sum = torch.empty(b, h, m, dtype=torch.float32, device=q.device)
    mean_key = torch.empty(b, h, m if return_mean else 0, d, dtype=torch.float32, device=q.device)
    launch(
        forward,
        tiles_for("log_totals.forward", q),
        query_grid(q),
        *(with_strides(q), with_strides(k), log_sum, mean_key, h, m, k.shape[-2], scale * LOG2E),
        spec=Spec(causal, return_mean, dot_precision(q), d),
    )
    return log_sum, mean_key
