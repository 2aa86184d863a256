"""Triton kernels for statistics of softmax weights: one pass along the rows of scores and one along the columns.

Let z be the score in powers of two and e_j = 2^(z_j - max z). The pass along a row updates three sums and the maximum:

    mass = sum e,   w = sum e (z - max z),   far = sum e |i - j|,      and   entropy = ln 2 (log2 mass - w/mass),   top = 1/mass

It also stores the row's log-sum-exp, with which the second pass adds up the weights that every key receives.
"""

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.kernels.dots import DotInputs
from rheoscope.attention.lower.kernels.tile_table import tiles_for
from rheoscope.attention.lower.kernels.tiles import (
    LOG2E,
    MASKED_SCORE,
    dot_precision,
    head_rows,
    kernel,
    key_grid,
    launch,
    load_rows,
    load_transposed,
    load_vector,
    masked_vector,
    query_grid,
    with_strides,
    zero_vector,
)

LN2 = tl.constexpr(0.6931471805599453)


class WeightStatistics(NamedTuple):
    """`entropy`, `first`, `top` and `distance` for each row and `received` for each key, in float32."""

    entropy: Float[Tensor, "b h m"]
    first: Float[Tensor, "b h m"]
    top: Float[Tensor, "b h m"]
    distance: Float[Tensor, "b h m"]
    received: Float[Tensor, "b h n"]


class Spec(NamedTuple):
    """Compile-time constants: HAS_SINK and HAS_LENGTHS tell whether a sink and text lengths are given."""

    CAUSAL: bool
    BIAS: bool
    HAS_SINK: bool
    HAS_LENGTHS: bool
    PRECISION: str
    D: int


@triton.jit
@no_type_check
def row_pass(
    row_max, exp_sum, w, distance_sum, q, i, k, kb, low, high, n_keys, N, a,
    SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The running maximum and the three sums, over the keys from low to high; i are positions."""
    for start in range(low, high, TILE.BLOCK_N):
        j = start + tl.arange(0, TILE.BLOCK_N)
        z = tl.dot(q, load_transposed(k, j, N, SPEC.D, MASKED), input_precision=SPEC.PRECISION) * a
        if SPEC.BIAS:
            z += load_vector(kb, j, N, MASKED)[None, :] * 1.4426950408889634
        gap = i[:, None] - j[None, :]
        if MASKED:
            allowed = (j < n_keys)[None, :]
            if SPEC.CAUSAL:
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
    Q, K, KB, SINK, LENGTHS, LOG_SUM, ENTROPY, FIRST, TOP, DISTANCE, H, M, N, a, SPEC: tl.constexpr, TILE: tl.constexpr
):
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * TILE.BLOCK_M
    rows = start + tl.arange(0, TILE.BLOCK_M)
    i = rows + N - M
    n_keys = N
    if SPEC.HAS_LENGTHS:
        n_keys = tl.minimum(tl.load(LENGTHS + head_index // H).to(tl.int32), N)
    q = load_rows(head_rows(Q, head_index, H), rows, M, SPEC.D, True)
    k, kb = head_rows(K, head_index, H), KB
    first_score = tl.sum(q.to(tl.float32) * tl.load(k.ptr + tl.arange(0, SPEC.D)).to(tl.float32)[None, :], 1) * a
    if SPEC.BIAS:
        kb = KB + head_index.to(tl.int64) * N
        first_score += tl.load(kb) * 1.4426950408889634
    full_end, end = n_keys, n_keys
    if SPEC.CAUSAL:
        full_end, end = tl.minimum(N - M + start + 1, n_keys), tl.minimum(N - M + start + TILE.BLOCK_M, n_keys)
    full_end = full_end // TILE.BLOCK_N * TILE.BLOCK_N
    row_max, exp_sum = masked_vector(TILE.BLOCK_M), zero_vector(TILE.BLOCK_M)
    w, distance_sum = zero_vector(TILE.BLOCK_M), zero_vector(TILE.BLOCK_M)
    row_max, exp_sum, w, distance_sum = row_pass(
        row_max, exp_sum, w, distance_sum, q, i, k, kb, 0, full_end, n_keys, N, a, SPEC, TILE, False
    )
    row_max, exp_sum, w, distance_sum = row_pass(
        row_max, exp_sum, w, distance_sum, q, i, k, kb, full_end, end, n_keys, N, a, SPEC, TILE, True
    )
    is_token, exp_sum = i < n_keys, tl.where(exp_sum > 0, exp_sum, 1.0)
    log_sum = row_max + tl.log2(exp_sum)
    if SPEC.HAS_SINK:
        sink = tl.load(SINK + head_index % H) * 1.4426950408889634
        max_score = tl.maximum(log_sum, sink)
        log_sum = max_score + tl.log2(tl.exp2(log_sum - max_score) + tl.exp2(sink - max_score))
    row_offsets, in_bounds = head_index.to(tl.int64) * M + rows, rows < M
    stored_log_sum = tl.where(is_token, log_sum, -MASKED_SCORE)  # a row beyond the text gives no weight to any key
    tl.store(LOG_SUM + row_offsets, stored_log_sum, mask=in_bounds)
    tl.store(ENTROPY + row_offsets, tl.where(is_token, LN2 * (tl.log2(exp_sum) - w / exp_sum), 0.0), mask=in_bounds)
    tl.store(FIRST + row_offsets, tl.where(is_token, tl.exp2(first_score - log_sum), 0.0), mask=in_bounds)
    tl.store(TOP + row_offsets, tl.where(is_token, tl.exp2(row_max - log_sum), 0.0), mask=in_bounds)
    tl.store(DISTANCE + row_offsets, tl.where(is_token, distance_sum / exp_sum, 0.0), mask=in_bounds)


@triton.jit
@no_type_check
def column_pass(
    received, k, kb, j, q, log_sum, low, high, M, N, a, SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr
):
    """received + the weights that the queries from low to high give to keys j."""
    for start in range(low, high, TILE.BLOCK_M):
        i = start + tl.arange(0, TILE.BLOCK_M)
        z = tl.dot(k, load_transposed(q, i, M, SPEC.D, MASKED), input_precision=SPEC.PRECISION) * a + kb[:, None]
        e = tl.exp2(z - load_vector(log_sum, i, M, MASKED)[None, :])
        if MASKED:
            allowed = (i < M)[None, :]
            if SPEC.CAUSAL:
                allowed = allowed & (j[:, None] <= i[None, :] + N - M)
            e = tl.where(allowed, e, 0.0)
        received += tl.sum(e, 1)
    return received


@kernel
@no_type_check
def column_sums(Q, K, KB, LENGTHS, LOG_SUM, RECEIVED, H, M, N, a, SPEC: tl.constexpr, TILE: tl.constexpr):
    head_index = tl.program_id(1)
    start = tl.program_id(0) * TILE.BLOCK_N
    j = start + tl.arange(0, TILE.BLOCK_N)
    n_keys = N
    if SPEC.HAS_LENGTHS:
        n_keys = tl.minimum(tl.load(LENGTHS + head_index // H).to(tl.int32), N)
    k, q = load_rows(head_rows(K, head_index, H), j, N, SPEC.D, True), head_rows(Q, head_index, H)
    kb = zero_vector(TILE.BLOCK_N)
    if SPEC.BIAS:
        kb = load_vector(KB + head_index.to(tl.int64) * N, j, N, True) * 1.4426950408889634
    first, full_start, full_end = 0, 0, M // TILE.BLOCK_M * TILE.BLOCK_M
    if SPEC.CAUSAL:
        first = tl.maximum(start - (N - M), 0) // TILE.BLOCK_M * TILE.BLOCK_M
        full_start = tl.minimum(
            (tl.maximum(start + TILE.BLOCK_N - 1 - (N - M), 0) + TILE.BLOCK_M - 1) // TILE.BLOCK_M * TILE.BLOCK_M,
            full_end,
        )
    log_sum, received = LOG_SUM + head_index.to(tl.int64) * M, zero_vector(TILE.BLOCK_N)
    if start < n_keys:
        received = column_pass(received, k, kb, j, q, log_sum, first, full_start, M, N, a, SPEC, TILE, True)
        received = column_pass(received, k, kb, j, q, log_sum, full_start, full_end, M, N, a, SPEC, TILE, False)
        received = column_pass(
            received, k, kb, j, q, log_sum, tl.maximum(first, full_end), M, M, N, a, SPEC, TILE, True
        )
    tl.store(RECEIVED + head_index.to(tl.int64) * N + j, tl.where(j < n_keys, received, 0.0), mask=j < N)


def softmax_statistics(
    inputs: DotInputs, causal: bool, sink: Float[Tensor, " h"] | None = None, lengths: Tensor | None = None
) -> WeightStatistics:
    """Statistics of the softmax weights of these scores; tokens beyond a text's length count neither as queries nor as keys."""
    q, k, key_bias = inputs.q, inputs.k, inputs.key_bias
    (b, h, m), n = q.shape[:3], k.shape[-2]
    log_sum, entropy, first, top, distance = torch.empty(5, b, h, m, dtype=torch.float32, device=q.device).unbind(0)
    received = torch.empty(b, h, n, dtype=torch.float32, device=q.device)
    rows, sizes = (with_strides(q), with_strides(k)), (h, m, n, inputs.scale * LOG2E)
    spec = Spec(causal, key_bias is not None, sink is not None, lengths is not None, dot_precision(q), q.shape[-1])
    launch(
        row_statistics,
        tiles_for("weights.row_statistics", q),
        query_grid(q),
        *(*rows, key_bias, sink, lengths, log_sum, entropy, first, top, distance, *sizes),
        spec=spec,
    )
    launch(
        column_sums,
        tiles_for("weights.column_sums", q),
        key_grid(k),
        *(*rows, key_bias, lengths, log_sum, received, *sizes),
        spec=spec,
    )
    return WeightStatistics(entropy, first, top, distance, received)
