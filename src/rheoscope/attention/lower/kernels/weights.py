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

from rheoscope.attention.lower.kernels.dots import Dots
from rheoscope.attention.lower.kernels.tiles import (
    LOG2E,
    Tiles,
    head,
    kernel,
    kind_of,
    launch,
    line,
    precision,
    strides,
    tile,
    turned,
)

ROWS = {
    "half": [Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 2)],
    "wide": [Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 2)],
    "single": [Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 1)],
}
"""Tiles by the kind of rows, the fastest first (measured on an H200)."""
COLUMNS = {
    "half": [Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 2)],
    "wide": [Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 2)],
    "single": [Tiles(32, 64, 4, 2), Tiles(32, 32, 4, 1)],
}
FAR = tl.constexpr(-1e30)
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
    top, mass, w, far, q, k, kb, sk, i, low, high, known, N, a,
    CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The running maximum and the three sums, further over keys low..high; i are positions."""
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        z = tl.dot(q, turned(k, j, sk, N, D, MASKED), input_precision=PRECISION) * a
        if BIAS:
            z += line(kb, j, N, MASKED)[None, :] * 1.4426950408889634
        gap = i[:, None] - j[None, :]
        if MASKED:
            there = (j < known)[None, :]
            if CAUSAL:
                there = there & (gap >= 0)
            z = tl.where(there, z, FAR)
        higher = tl.maximum(top, tl.max(z, 1))
        z = z - higher[:, None]
        e = tl.exp2(z)
        shrink = tl.exp2(top - higher)
        w = (w + mass * (top - higher)) * shrink + tl.sum(e * z, 1)
        mass = mass * shrink + tl.sum(e, 1)
        far = far * shrink + tl.sum(e * tl.abs(gap).to(tl.float32), 1)
        top = higher
    return top, mass, w, far


@kernel
@no_type_check
def along_rows(
    Q, K, KB, SINK, LENGTHS, TOTAL, ENTROPY, FIRST, TOP, DISTANCE, qb0, qh0, qm, kb0, kh0, kn, H, M, N, a,
    CAUSAL: tl.constexpr, BIAS: tl.constexpr, SUNK: tl.constexpr, SHORT: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    rows = start + tl.arange(0, BLOCK_M)
    i = rows + N - M
    known = N
    if SHORT:
        known = tl.minimum(tl.load(LENGTHS + at // H).to(tl.int32), N)
    q = tile(head(Q, at, H, qb0, qh0), rows, qm, M, D, True)
    k, kb = head(K, at, H, kb0, kh0), KB
    zero = tl.sum(q.to(tl.float32) * tl.load(k + tl.arange(0, D)).to(tl.float32)[None, :], 1) * a
    if BIAS:
        kb = KB + at.to(tl.int64) * N
        zero += tl.load(kb) * 1.4426950408889634
    whole, last = known, known
    if CAUSAL:
        whole, last = tl.minimum(N - M + start + 1, known), tl.minimum(N - M + start + BLOCK_M, known)
    whole = whole // BLOCK_N * BLOCK_N
    top, mass = tl.full([BLOCK_M], FAR, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    w, far = tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    top, mass, w, far = row_pass(top, mass, w, far, q, k, kb, kn, i, 0, whole, known, N, a,
                              CAUSAL, BIAS, PRECISION, D, BLOCK_N, False)  # fmt: skip
    top, mass, w, far = row_pass(top, mass, w, far, q, k, kb, kn, i, whole, last, known, N, a,
                              CAUSAL, BIAS, PRECISION, D, BLOCK_N, True)  # fmt: skip
    real, mass = i < known, tl.where(mass > 0, mass, 1.0)
    total = top + tl.log2(mass)
    if SUNK:
        sink = tl.load(SINK + at % H) * 1.4426950408889634
        most = tl.maximum(total, sink)
        total = most + tl.log2(tl.exp2(total - most) + tl.exp2(sink - most))
    out, inside = at.to(tl.int64) * M + rows, rows < M
    tl.store(TOTAL + out, tl.where(real, total, -FAR), mask=inside)  # a row that is not there sends nothing
    tl.store(ENTROPY + out, tl.where(real, LN2 * (tl.log2(mass) - w / mass), 0.0), mask=inside)
    tl.store(FIRST + out, tl.where(real, tl.exp2(zero - total), 0.0), mask=inside)
    tl.store(TOP + out, tl.where(real, tl.exp2(top - total), 0.0), mask=inside)
    tl.store(DISTANCE + out, tl.where(real, far / mass, 0.0), mask=inside)


@triton.jit
@no_type_check
def column_pass(
    received, k, kb, q, total, sq, j, low, high, M, N, a,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """received + the weights that queries low..high give to keys j."""
    for start in range(low, high, BLOCK_M):
        i = start + tl.arange(0, BLOCK_M)
        z = tl.dot(k, turned(q, i, sq, M, D, MASKED), input_precision=PRECISION) * a + kb[:, None]
        e = tl.exp2(z - line(total, i, M, MASKED)[None, :])
        if MASKED:
            there = (i < M)[None, :]
            if CAUSAL:
                there = there & (j[:, None] <= i[None, :] + N - M)
            e = tl.where(there, e, 0.0)
        received += tl.sum(e, 1)
    return received


@kernel
@no_type_check
def along_columns(
    Q, K, KB, LENGTHS, TOTAL, RECEIVED, qb0, qh0, qm, kb0, kh0, kn, H, M, N, a,
    CAUSAL: tl.constexpr, BIAS: tl.constexpr, SUNK: tl.constexpr, SHORT: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(1)
    start = tl.program_id(0) * BLOCK_N
    j = start + tl.arange(0, BLOCK_N)
    known = N
    if SHORT:
        known = tl.minimum(tl.load(LENGTHS + at // H).to(tl.int32), N)
    k, q = tile(head(K, at, H, kb0, kh0), j, kn, N, D, True), head(Q, at, H, qb0, qh0)
    kb = tl.zeros([BLOCK_N], tl.float32)
    if BIAS:
        kb = line(KB + at.to(tl.int64) * N, j, N, True) * 1.4426950408889634
    first, whole, end = 0, 0, M // BLOCK_M * BLOCK_M
    if CAUSAL:
        first = tl.maximum(start - (N - M), 0) // BLOCK_M * BLOCK_M
        whole = tl.minimum((tl.maximum(start + BLOCK_N - 1 - (N - M), 0) + BLOCK_M - 1) // BLOCK_M * BLOCK_M, end)
    total, received = TOTAL + at.to(tl.int64) * M, tl.zeros([BLOCK_N], tl.float32)
    if start < known:
        received = column_pass(received, k, kb, q, total, qm, j, first, whole, M, N, a,
                               CAUSAL, PRECISION, D, BLOCK_M, True)  # fmt: skip
        received = column_pass(received, k, kb, q, total, qm, j, whole, end, M, N, a,
                               CAUSAL, PRECISION, D, BLOCK_M, False)  # fmt: skip
        received = column_pass(received, k, kb, q, total, qm, j, tl.maximum(first, end), M, M, N, a,
                               CAUSAL, PRECISION, D, BLOCK_M, True)  # fmt: skip
    tl.store(RECEIVED + at.to(tl.int64) * N + j, tl.where(j < known, received, 0.0), mask=j < N)


def weight_sums(
    dots: Dots, causal: bool, sink: Float[Tensor, " h"] | None = None, lengths: Tensor | None = None
) -> WeightStatistics:
    """Statistics of softmax weights of these scores; tokens beyond a text's length are neither queries nor keys."""
    q, k = dots.q, dots.k
    (b, h, m), n, tiles = q.shape[:3], k.shape[-2], kind_of(q)
    total, entropy, first, top, distance = torch.empty(5, b, h, m, dtype=torch.float32, device=q.device).unbind(0)
    received = torch.empty(b, h, n, dtype=torch.float32, device=q.device)
    shapes = (*strides(q, k), h, m, n, dots.scale * LOG2E)
    constants = {"CAUSAL": causal, "BIAS": dots.key_bias is not None, "SUNK": sink is not None}
    constants |= {"SHORT": lengths is not None}
    launch(
        along_rows,
        ROWS[tiles],
        lambda t: (triton.cdiv(m, t.BLOCK_M), b * h),
        *(q, k, dots.key_bias, sink, lengths, total, entropy, first, top, distance, *shapes),
        PRECISION=precision(q),
        D=q.shape[-1],
        **constants,
    )
    launch(
        along_columns,
        COLUMNS[tiles],
        lambda t: (triton.cdiv(n, t.BLOCK_N), b * h),
        *(q, k, dots.key_bias, lengths, total, received, *shapes),
        PRECISION=precision(q),
        D=q.shape[-1],
        **constants,
    )
    return WeightStatistics(entropy, first, top, distance, received)
