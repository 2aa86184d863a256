"""Triton kernels for the softmax of negative distances, s = -gamma |q - k|, with u = |q|^2 + |k|^2 - 2 q.k:

    P = softmax(-gamma sqrt(u)),   o = P v,   t = -gamma P (do.v - do.o) / sqrt(u),   dq_i = sum_j t_ij (q_i - k_j)

and dk likewise. The forward kernel makes one pass over tiles, the backward kernels two. Squared norms are float32, so a
distance is as exact as the inner product. Two tokens at the same point contribute no gradient.
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheoscope.attention.lower.kernels.tile_table import tiles_for
from rheoscope.attention.lower.kernels.tiles import (
    LOG2E,
    MASKED_SCORE,
    Keys,
    dot_precision,
    empty_like,
    empty_outputs,
    head_rows,
    is_allowed,
    kernel,
    key_grid,
    key_range,
    launch,
    load_contiguous,
    load_rows,
    load_transposed,
    load_vector,
    masked_vector,
    query_grid,
    query_range,
    store_rows,
    with_strides,
    zero_rows,
    zero_vector,
)


class Spec(NamedTuple):
    """Compile-time constants; D and E are the widths of keys and values."""

    CAUSAL: bool
    PRECISION: str
    D: int
    E: int


class Score(NamedTuple):
    """`slope` turns a distance into a score in powers of two; `gamma` is the slope of the score itself."""

    slope: Any
    gamma: Any


class Queries(NamedTuple):
    """The queries of one head: rows, and the addresses of do, |q|^2, the row's log-sum-exp and do.o."""

    q: Any
    g: Any
    squares: Any
    log_sum: Any
    delta: Any


@triton.jit
@no_type_check
def distance_and_inverse(u):
    """sqrt(u) and 1/sqrt(u), both 0 where rounding makes u zero or negative."""
    inverse = tl.where(u > 0, tl.rsqrt(tl.maximum(u, 1e-30)), 0.0)
    return u * inverse, inverse


@triton.jit
@no_type_check
def forward_pass(
    acc, row_max, exp_sum, q, q2, i, keys, low, high, M, N, a,
    SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The running maximum, the sum of exponentials and the weighted sum of values, over the keys from low to high."""
    for start in range(low, high, TILE.BLOCK_N):
        j = start + tl.arange(0, TILE.BLOCK_N)
        product = tl.dot(q, load_transposed(keys.k, j, N, SPEC.D, MASKED), input_precision=SPEC.PRECISION)
        u = q2[:, None] + load_vector(keys.vector, j, N, MASKED)[None, :] - 2.0 * product
        z = tl.sqrt(tl.maximum(u, 0.0)) * a
        if MASKED:
            z = tl.where(is_allowed(i[:, None], j[None, :], M, N, SPEC.CAUSAL), z, MASKED_SCORE)
        new_max = tl.maximum(row_max, tl.max(z, 1))
        e, rescale = tl.exp2(z - new_max[:, None]), tl.exp2(row_max - new_max)
        values = load_rows(keys.v, j, N, SPEC.E, MASKED)
        acc = tl.dot(e.to(values.dtype), values, acc * rescale[:, None], input_precision=SPEC.PRECISION)
        exp_sum = exp_sum * rescale + tl.sum(e, 1)
        row_max = new_max
    return acc, row_max, exp_sum


@kernel
@no_type_check
def forward(Q, K, V, Q2, K2, OUT, LOG_SUM, H, M, N, a, SPEC: tl.constexpr, TILE: tl.constexpr):
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * TILE.BLOCK_M  # the longest rows first
    i = start + tl.arange(0, TILE.BLOCK_M)
    q = load_rows(head_rows(Q, head_index, H), i, M, SPEC.D, True)
    q2 = load_vector(Q2 + head_index.to(tl.int64) * M, i, M, True)
    keys = Keys(head_rows(K, head_index, H), head_rows(V, head_index, H), K2 + head_index.to(tl.int64) * N)
    full_end, end = key_range(start, M, N, SPEC.CAUSAL, TILE)
    acc = zero_rows(TILE.BLOCK_M, SPEC.E)
    row_max, exp_sum = masked_vector(TILE.BLOCK_M), zero_vector(TILE.BLOCK_M)
    acc, row_max, exp_sum = forward_pass(acc, row_max, exp_sum, q, q2, i, keys, 0, full_end, M, N, a, SPEC, TILE, False)
    acc, row_max, exp_sum = forward_pass(
        acc, row_max, exp_sum, q, q2, i, keys, full_end, end, M, N, a, SPEC, TILE, True
    )
    store_rows(OUT + head_index.to(tl.int64) * M * SPEC.E, i, M, acc / exp_sum[:, None], SPEC.E)
    tl.store(LOG_SUM + head_index.to(tl.int64) * M + i, row_max + tl.log2(exp_sum), mask=i < M)


@triton.jit
@no_type_check
def queries_pass(
    dq, t_sum, q, q2, g, log_sum, delta, i, keys, low, high, M, N, score,
    SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """sum_j t k and sum_j t over the keys from low to high."""
    for start in range(low, high, TILE.BLOCK_N):
        j = start + tl.arange(0, TILE.BLOCK_N)
        k = load_rows(keys.k, j, N, SPEC.D, MASKED)
        product = tl.dot(q, tl.trans(k), input_precision=SPEC.PRECISION)
        u = q2[:, None] + load_vector(keys.vector, j, N, MASKED)[None, :] - 2.0 * product
        dist, inverse = distance_and_inverse(u)
        p = tl.exp2(dist * score.slope - log_sum[:, None])
        if MASKED:
            p = tl.where(is_allowed(i[:, None], j[None, :], M, N, SPEC.CAUSAL), p, 0.0)
        dp = tl.dot(g, load_transposed(keys.v, j, N, SPEC.E, MASKED), input_precision=SPEC.PRECISION)
        t = (p * (delta[:, None] - dp) * (inverse * score.gamma)).to(k.dtype)
        dq = tl.dot(t, k, dq, input_precision=SPEC.PRECISION)
        t_sum += tl.sum(t.to(tl.float32), 1)
    return dq, t_sum


@kernel
@no_type_check
def queries_backward(
    Q, K, V, Q2, K2, G, OUT, LOG_SUM, DELTA, DQ, H, M, N, score, SPEC: tl.constexpr, TILE: tl.constexpr
):
    """dq, and do.o of every row, which `keys_backward` reads."""
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * TILE.BLOCK_M
    i = start + tl.arange(0, TILE.BLOCK_M)
    row_offset = head_index.to(tl.int64) * M
    q = load_rows(head_rows(Q, head_index, H), i, M, SPEC.D, True)
    q2, log_sum = load_vector(Q2 + row_offset, i, M, True), load_vector(LOG_SUM + row_offset, i, M, True)
    g = load_contiguous(G + row_offset * SPEC.E, i, M, SPEC.E, True)
    out = load_contiguous(OUT + row_offset * SPEC.E, i, M, SPEC.E, True)
    delta = tl.sum(g.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(DELTA + row_offset + i, delta, mask=i < M)
    keys = Keys(head_rows(K, head_index, H), head_rows(V, head_index, H), K2 + head_index.to(tl.int64) * N)
    full_end, end = key_range(start, M, N, SPEC.CAUSAL, TILE)
    dq, t_sum = zero_rows(TILE.BLOCK_M, SPEC.D), zero_vector(TILE.BLOCK_M)
    dq, t_sum = queries_pass(dq, t_sum, q, q2, g, log_sum, delta, i, keys, 0, full_end, M, N, score, SPEC, TILE, False)
    dq, t_sum = queries_pass(dq, t_sum, q, q2, g, log_sum, delta, i, keys, full_end, end, M, N, score, SPEC, TILE, True)
    store_rows(DQ + row_offset * SPEC.D, i, M, t_sum[:, None] * q.to(tl.float32) - dq, SPEC.D)


@triton.jit
@no_type_check
def keys_pass(
    dk, dv, t_sum, k, v, k2, j, queries, low, high, M, N, score,
    SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """sum_i t q, dv and sum_i t over the queries from low to high."""
    for start in range(low, high, TILE.BLOCK_M):
        i = start + tl.arange(0, TILE.BLOCK_M)
        q = load_rows(queries.q, i, M, SPEC.D, MASKED)
        product = tl.dot(k, tl.trans(q), input_precision=SPEC.PRECISION)
        u = k2[:, None] + load_vector(queries.squares, i, M, MASKED)[None, :] - 2.0 * product
        dist, inverse = distance_and_inverse(u)
        p = tl.exp2(dist * score.slope - load_vector(queries.log_sum, i, M, MASKED)[None, :])
        if MASKED:
            p = tl.where(is_allowed(i[None, :], j[:, None], M, N, SPEC.CAUSAL), p, 0.0)
        g = load_contiguous(queries.g, i, M, SPEC.E, MASKED)
        dv = tl.dot(p.to(g.dtype), g, dv, input_precision=SPEC.PRECISION)
        dp = tl.dot(v, tl.trans(g), input_precision=SPEC.PRECISION)
        t = (p * (load_vector(queries.delta, i, M, MASKED)[None, :] - dp) * (inverse * score.gamma)).to(q.dtype)
        dk = tl.dot(t, q, dk, input_precision=SPEC.PRECISION)
        t_sum += tl.sum(t.to(tl.float32), 1)
    return dk, dv, t_sum


@kernel
@no_type_check
def keys_backward(Q, K, V, Q2, K2, G, LOG_SUM, DELTA, DK, DV, H, M, N, score, SPEC: tl.constexpr, TILE: tl.constexpr):
    head_index = tl.program_id(1)
    start = tl.program_id(0) * TILE.BLOCK_N
    j = start + tl.arange(0, TILE.BLOCK_N)
    k = load_rows(head_rows(K, head_index, H), j, N, SPEC.D, True)
    v = load_rows(head_rows(V, head_index, H), j, N, SPEC.E, True)
    k2, row_offset = load_vector(K2 + head_index.to(tl.int64) * N, j, N, True), head_index.to(tl.int64) * M
    queries = Queries(
        head_rows(Q, head_index, H), G + row_offset * SPEC.E, Q2 + row_offset, LOG_SUM + row_offset, DELTA + row_offset
    )
    first, full_start, full_end = query_range(start, M, N, SPEC.CAUSAL, TILE)
    dk, dv = zero_rows(TILE.BLOCK_N, SPEC.D), zero_rows(TILE.BLOCK_N, SPEC.E)
    t_sum = zero_vector(TILE.BLOCK_N)
    dk, dv, t_sum = keys_pass(
        dk, dv, t_sum, k, v, k2, j, queries, first, tl.minimum(full_start, M), M, N, score, SPEC, TILE, True
    )
    dk, dv, t_sum = keys_pass(dk, dv, t_sum, k, v, k2, j, queries, full_start, full_end, M, N, score, SPEC, TILE, False)
    dk, dv, t_sum = keys_pass(dk, dv, t_sum, k, v, k2, j, queries, full_end, M, M, N, score, SPEC, TILE, True)
    store_rows(DK + head_index.to(tl.int64) * N * SPEC.D, j, N, t_sum[:, None] * k.to(tl.float32) - dk, SPEC.D)
    store_rows(DV + head_index.to(tl.int64) * N * SPEC.E, j, N, dv, SPEC.E)


def _spec(q: Tensor, v: Tensor, causal: bool) -> Spec:
    return Spec(causal, dot_precision(q), q.shape[-1], v.shape[-1])


def _squared_norms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).square()


@torch.library.custom_op(
    "rheoscope::laplace",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, float gamma, bool causal) -> (Tensor, Tensor)",
)
def laplace(q: Tensor, k: Tensor, v: Tensor, gamma: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention outputs, and the log-sum-exp of every row in base 2."""
    out, log_sum = empty_outputs(q, v)
    sizes = (q.shape[1], q.shape[-2], k.shape[-2], -gamma * LOG2E)
    launch(
        forward,
        tiles_for("laplace.forward", q, v),
        query_grid(q),
        *(*map(with_strides, (q, k, v)), _squared_norms(q), _squared_norms(k), out, log_sum, *sizes),
        spec=_spec(q, v, causal),
    )
    return out, log_sum


@torch.library.custom_op(
    "rheoscope::laplace_backward",
    mutates_args=(),
    schema="(Tensor g, Tensor q, Tensor k, Tensor v, Tensor out, Tensor total, float gamma, bool causal) -> Tensor[]",
)
def laplace_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, total: Tensor, gamma: float, causal: bool
) -> list[Tensor]:
    """The gradients of q, k and v."""
    dq, dk, dv = empty_like(q, k, v)
    g, delta, spec = g.contiguous(), torch.empty_like(total), _spec(q, v, causal)
    inputs = (*map(with_strides, (q, k, v)), _squared_norms(q), _squared_norms(k), g)
    sizes = (q.shape[1], q.shape[-2], k.shape[-2], Score(-gamma * LOG2E, gamma))
    query_tiles, key_tiles = tiles_for("laplace.queries_backward", q, v), tiles_for("laplace.keys_backward", q, v)
    launch(queries_backward, query_tiles, query_grid(q), *inputs, out, total, delta, dq, *sizes, spec=spec)
    launch(keys_backward, key_tiles, key_grid(k), *inputs, total, delta, dk, dv, *sizes, spec=spec)
    return [dq, dk, dv]


@laplace.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, gamma: float, causal: bool) -> tuple[Tensor, Tensor]:
    return empty_outputs(q, v)


@laplace_backward.register_fake
def _(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *unused: object) -> list[Tensor]:
    return empty_like(q, k, v)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.settings = inputs[3:]


def _backward(ctx: Any, g: Tensor, grad_log_sum: Tensor) -> tuple[Tensor | None, ...]:
    dq, dk, dv = torch.ops.rheoscope.laplace_backward(g, *ctx.saved_tensors, *ctx.settings)
    return dq, dk, dv, None, None


laplace.register_autograd(_backward, setup_context=_save_for_backward)
