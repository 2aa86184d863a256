"""What softmax weights are like, in two passes over tiles of scores: one along rows, one along columns.

Along a row, with e_j = 2^(z_j - max z) and z the score in powers of two, four sums are kept while the maximum is found,

    mass = sum e,   w = sum e (z - max z),   far = sum e |i - j|,      and   entropy = ln 2 (log2 mass - w/mass),   top = 1/mass

and the logarithm of what the row divides by, with which the second pass adds up the weights of every key.
"""

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.kernels.dots import DotInputs
from rheoscope.attention.lower.kernels.tiles import (
    LOG2E,
    TileConfig,
    dot_precision,
    head_ptr,
    kernel,
    launch,
    load_rows,
    load_transposed,
    load_vector,
    strides,
    tile_key,
)

ROW_TILES = {
    "half": [TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)],
    "wide": [TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)],
    "single": [TileConfig(64, 32, 4, 2), TileConfig(32, 32, 4, 1)],
}
"""Tiles by the kind of rows, the fastest first (measured on an H200)."""
COLUMN_TILES = {
    "half": [TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)],
    "wide": [TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)],
    "single": [TileConfig(32, 64, 4, 2), TileConfig(32, 32, 4, 1)],
}
MASKED_SCORE = tl.constexpr(-1e30)
LN2 = tl.constexpr(0.6931471805599453)


class WeightStatistics(NamedTuple):
    """Per row `entropy`, `first`, `top`, `distance` and per key `received`, in float32."""

    entropy: Float[Tensor, "b h m"]
    first: Float[Tensor, "b h m"]
    top: Float[Tensor, "b h m"]
    distance: Float[Tensor, "b h m"]
    received: Float[Tensor, "b h n"]


@triton.jit
@no_type_check
def row_pass(
    row_max, exp_sum, w, distance_sum, q, k, kb, sk, i, low, high, n_keys, N, a,
    CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The running maximum and the three sums, further over keys low..high; i are positions."""
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        z = tl.dot(q, load_transposed(k, j, sk, N, D, MASKED), input_precision=PRECISION) * a
        if BIAS:
            z += load_vector(kb, j, N, MASKED)[None, :] * 1.4426950408889634
        gap = i[:, None] - j[None, :]
        if MASKED:
            allowed = (j < n_keys)[None, :]
            if CAUSAL:
                allowed = allowed & (gap >= 0)
            z = tl.where(allowed, z, MASKED_SCORE)
        new_max = tl.maximum(row_max, tl.max(z, 1))
        z = z - new_max[:, None]
        e = tl.exp2(z)
        rescale = tl.exp2(row_max - new_max)
        w = (w + exp_sum * (row_max - new_max)) * rescale + tl.sum(e * z, 1)
        exp_sum = exp_sum * rescale + tl.sum(e, 1)
        distance_sum = distance_sum * rescale + tl.sum(e * tl.abs(gap).to(tl.float32), 1)
        row_max = new_max
    return row_max, exp_sum, w, distance_sum


@kernel
@no_type_check
def row_statistics(
    Q, K, KB, SINK, LENGTHS, LOG_SUM, ENTROPY, FIRST, TOP, DISTANCE, qb0, qh0, qm, kb0, kh0, kn, H, M, N, a,
    CAUSAL: tl.constexpr, BIAS: tl.constexpr, SUNK: tl.constexpr, SHORT: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    rows = start + tl.arange(0, BLOCK_M)
    i = rows + N - M
    n_keys = N
    if SHORT:
        n_keys = tl.minimum(tl.load(LENGTHS + head_index // H).to(tl.int32), N)
    q = load_rows(head_ptr(Q, head_index, H, qb0, qh0), rows, qm, M, D, True)
    k, kb = head_ptr(K, head_index, H, kb0, kh0), KB
    first_score = tl.sum(q.to(tl.float32) * tl.load(k + tl.arange(0, D)).to(tl.float32)[None, :], 1) * a
    if BIAS:
        kb = KB + head_index.to(tl.int64) * N
        first_score += tl.load(kb) * 1.4426950408889634
    full_end, end = n_keys, n_keys
    if CAUSAL:
        full_end, end = tl.minimum(N - M + start + 1, n_keys), tl.minimum(N - M + start + BLOCK_M, n_keys)
    full_end = full_end // BLOCK_N * BLOCK_N
    row_max, exp_sum = tl.full([BLOCK_M], MASKED_SCORE, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    w, distance_sum = tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    row_max, exp_sum, w, distance_sum = row_pass(row_max, exp_sum, w, distance_sum, q, k, kb, kn, i, 0, full_end, n_keys, N, a,
                              CAUSAL, BIAS, PRECISION, D, BLOCK_N, False)  # fmt: skip
    row_max, exp_sum, w, distance_sum = row_pass(row_max, exp_sum, w, distance_sum, q, k, kb, kn, i, full_end, end, n_keys, N, a,
                              CAUSAL, BIAS, PRECISION, D, BLOCK_N, True)  # fmt: skip
    is_token, exp_sum = i < n_keys, tl.where(exp_sum > 0, exp_sum, 1.0)
    log_sum = row_max + tl.log2(exp_sum)
    if SUNK:
        sink = tl.load(SINK + head_index % H) * 1.4426950408889634
        max_score = tl.maximum(log_sum, sink)
        log_sum = max_score + tl.log2(tl.exp2(log_sum - max_score) + tl.exp2(sink - max_score))
    row_offsets, in_bounds = head_index.to(tl.int64) * M + rows, rows < M
    tl.store(
        LOG_SUM + row_offsets, tl.where(is_token, log_sum, -MASKED_SCORE), mask=in_bounds
    )  # a row that is not there sends nothing
    tl.store(ENTROPY + row_offsets, tl.where(is_token, LN2 * (tl.log2(exp_sum) - w / exp_sum), 0.0), mask=in_bounds)
    tl.store(FIRST + row_offsets, tl.where(is_token, tl.exp2(first_score - log_sum), 0.0), mask=in_bounds)
    tl.store(TOP + row_offsets, tl.where(is_token, tl.exp2(row_max - log_sum), 0.0), mask=in_bounds)
    tl.store(DISTANCE + row_offsets, tl.where(is_token, distance_sum / exp_sum, 0.0), mask=in_bounds)


@triton.jit
@no_type_check
def column_pass(
    received, k, kb, q, log_sum, sq, j, low, high, M, N, a,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """received + the weights that queries low..high give to keys j."""
    for start in range(low, high, BLOCK_M):
        i = start + tl.arange(0, BLOCK_M)
        z = tl.dot(k, load_transposed(q, i, sq, M, D, MASKED), input_precision=PRECISION) * a + kb[:, None]
        e = tl.exp2(z - load_vector(log_sum, i, M, MASKED)[None, :])
        if MASKED:
            allowed = (i < M)[None, :]
            if CAUSAL:
                allowed = allowed & (j[:, None] <= i[None, :] + N - M)
            e = tl.where(allowed, e, 0.0)
        received += tl.sum(e, 1)
    return received


@kernel
@no_type_check
def column_sums(
    Q, K, KB, LENGTHS, LOG_SUM, RECEIVED, qb0, qh0, qm, kb0, kh0, kn, H, M, N, a,
    CAUSAL: tl.constexpr, BIAS: tl.constexpr, SUNK: tl.constexpr, SHORT: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head_index = tl.program_id(1)
    start = tl.program_id(0) * BLOCK_N
    j = start + tl.arange(0, BLOCK_N)
    n_keys = N
    if SHORT:
        n_keys = tl.minimum(tl.load(LENGTHS + head_index // H).to(tl.int32), N)
    k, q = load_rows(head_ptr(K, head_index, H, kb0, kh0), j, kn, N, D, True), head_ptr(Q, head_index, H, qb0, qh0)
    kb = tl.zeros([BLOCK_N], tl.float32)
    if BIAS:
        kb = load_vector(KB + head_index.to(tl.int64) * N, j, N, True) * 1.4426950408889634
    first, full_start, full_end = 0, 0, M // BLOCK_M * BLOCK_M
    if CAUSAL:
        first = tl.maximum(start - (N - M), 0) // BLOCK_M * BLOCK_M
        full_start = tl.minimum(
            (tl.maximum(start + BLOCK_N - 1 - (N - M), 0) + BLOCK_M - 1) // BLOCK_M * BLOCK_M, full_end
        )
    log_sum, received = LOG_SUM + head_index.to(tl.int64) * M, tl.zeros([BLOCK_N], tl.float32)
    if start < n_keys:
        received = column_pass(received, k, kb, q, log_sum, qm, j, first, full_start, M, N, a,
                               CAUSAL, PRECISION, D, BLOCK_M, True)  # fmt: skip
        received = column_pass(received, k, kb, q, log_sum, qm, j, full_start, full_end, M, N, a,
                               CAUSAL, PRECISION, D, BLOCK_M, False)  # fmt: skip
        received = column_pass(received, k, kb, q, log_sum, qm, j, tl.maximum(first, full_end), M, M, N, a,
                               CAUSAL, PRECISION, D, BLOCK_M, True)  # fmt: skip
    tl.store(RECEIVED + head_index.to(tl.int64) * N + j, tl.where(j < n_keys, received, 0.0), mask=j < N)


def softmax_statistics(
    inputs: DotInputs, causal: bool, sink: Float[Tensor, " h"] | None = None, lengths: Tensor | None = None
) -> WeightStatistics:
    """Statistics of softmax weights of these scores; tokens beyond a text's length are neither queries nor keys."""
    q, k = inputs.q, inputs.k
    (b, h, m), n, key = q.shape[:3], k.shape[-2], tile_key(q)
    log_sum, entropy, first, top, distance = torch.empty(5, b, h, m, dtype=torch.float32, device=q.device).unbind(0)
    received = torch.empty(b, h, n, dtype=torch.float32, device=q.device)
    launch_args = (*strides(q, k), h, m, n, inputs.scale * LOG2E)
    constants = {"CAUSAL": causal, "BIAS": inputs.key_bias is not None, "SUNK": sink is not None}
    constants |= {"SHORT": lengths is not None}
    launch(
        row_statistics,
        ROW_TILES[key],
        lambda config: (triton.cdiv(m, config.BLOCK_M), b * h),
        *(q, k, inputs.key_bias, sink, lengths, log_sum, entropy, first, top, distance, *launch_args),
        PRECISION=dot_precision(q),
        D=q.shape[-1],
        **constants,
    )
    launch(
        column_sums,
        COLUMN_TILES[key],
        lambda config: (triton.cdiv(n, config.BLOCK_N), b * h),
        *(q, k, inputs.key_bias, lengths, log_sum, received, *launch_args),
        PRECISION=dot_precision(q),
        D=q.shape[-1],
        **constants,
    )
    return WeightStatistics(entropy, first, top, distance, received)
