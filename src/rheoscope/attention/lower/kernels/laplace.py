"""Softmax of distances, s = -gamma |q - k|, in one pass over tiles, and two back: with u = |q|^2 + |k|^2 - 2 q.k,

    P = softmax(-gamma sqrt(u)),   o = P v,   t = -gamma P (do.v - do.o) / sqrt(u),   dq_i = sum_j t_ij (q_i - k_j)

and dk likewise. Squares are float32, so a distance is as exact as the inner product; two tokens in one place pull at nothing.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
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
    load_transposed,
    load_vector,
    query_range,
    store_rows,
    strides,
    tile_key,
)

FORWARD_TILES = {
    "half": [TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)],
    "wide": [TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)],
    "single": [TileConfig(64, 32, 4, 2), TileConfig(32, 32, 4, 1)],
}
KEYS_TILES = {
    "half": [TileConfig(64, 64, 4, 3), TileConfig(32, 64, 4, 2)],
    "wide": [TileConfig(32, 64, 4, 2), TileConfig(32, 32, 4, 2)],
    "single": [TileConfig(32, 64, 4, 1), TileConfig(16, 32, 4, 1)],
}
QUERIES_TILES = {
    "half": [TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)],
    "wide": [TileConfig(64, 32, 4, 2), TileConfig(32, 32, 4, 2)],
    "single": [TileConfig(64, 32, 4, 1), TileConfig(32, 16, 4, 1)],
}
"""Tiles by the kind of rows, the fastest first (measured on an H200)."""
MASKED_SCORE = tl.constexpr(-1e30)


@triton.jit
@no_type_check
def distance_and_inverse(u):
    """sqrt(u), and one over it: both 0 where rounding leaves nothing."""
    inverse = tl.where(u > 0, tl.rsqrt(tl.maximum(u, 1e-30)), 0.0)
    return u * inverse, inverse


@triton.jit
@no_type_check
def forward_pass(
    acc, row_max, exp_sum, q, q2, k, v, k2, sk, sv, i, low, high, M, N, a,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        product = tl.dot(q, load_transposed(k, j, sk, N, D, MASKED), input_precision=PRECISION)
        z = tl.sqrt(tl.maximum(q2[:, None] + load_vector(k2, j, N, MASKED)[None, :] - 2.0 * product, 0.0)) * a
        if MASKED:
            z = tl.where(is_allowed(i[:, None], j[None, :], M, N, CAUSAL), z, MASKED_SCORE)
        new_max = tl.maximum(row_max, tl.max(z, 1))
        e, rescale = tl.exp2(z - new_max[:, None]), tl.exp2(row_max - new_max)
        values = load_rows(v, j, sv, N, E, MASKED)
        acc = tl.dot(e.to(values.dtype), values, acc * rescale[:, None], input_precision=PRECISION)
        exp_sum = exp_sum * rescale + tl.sum(e, 1)
        row_max = new_max
    return acc, row_max, exp_sum


@kernel
@no_type_check
def forward(
    Q, K, V, Q2, K2, OUT, LOG_SUM, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, a,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # the longest rows first
    i = start + tl.arange(0, BLOCK_M)
    q, q2 = (
        load_rows(head_ptr(Q, head_index, H, qb0, qh0), i, qm, M, D, True),
        load_vector(Q2 + head_index.to(tl.int64) * M, i, M, True),
    )
    k, v, k2 = (
        head_ptr(K, head_index, H, kb0, kh0),
        head_ptr(V, head_index, H, vb0, vh0),
        K2 + head_index.to(tl.int64) * N,
    )
    full_end, end = key_range(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    acc = tl.zeros([BLOCK_M, E], tl.float32)
    row_max, exp_sum = tl.full([BLOCK_M], MASKED_SCORE, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    acc, row_max, exp_sum = forward_pass(acc, row_max, exp_sum, q, q2, k, v, k2, kn, vn, i, 0, full_end, M, N, a,
                             CAUSAL, PRECISION, D, E, BLOCK_N, False)  # fmt: skip
    acc, row_max, exp_sum = forward_pass(acc, row_max, exp_sum, q, q2, k, v, k2, kn, vn, i, full_end, end, M, N, a,
                             CAUSAL, PRECISION, D, E, BLOCK_N, True)  # fmt: skip
    store_rows(OUT + head_index.to(tl.int64) * M * E, i, M, acc / exp_sum[:, None], E)
    tl.store(LOG_SUM + head_index.to(tl.int64) * M + i, row_max + tl.log2(exp_sum), mask=i < M)


@triton.jit
@no_type_check
def queries_pass(
    dq, t_sum, q, q2, g, log_sum, delta, k, v, k2, sk, sv, i, low, high, M, N, a, gamma,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """sum_j t k and sum_j t, over keys low..high."""
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        keys = load_rows(k, j, sk, N, D, MASKED)
        product = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
        dist, inverse = distance_and_inverse(q2[:, None] + load_vector(k2, j, N, MASKED)[None, :] - 2.0 * product)
        p = tl.exp2(dist * a - log_sum[:, None])
        if MASKED:
            p = tl.where(is_allowed(i[:, None], j[None, :], M, N, CAUSAL), p, 0.0)
        dp = tl.dot(g, load_transposed(v, j, sv, N, E, MASKED), input_precision=PRECISION)
        t = (p * (delta[:, None] - dp) * (inverse * gamma)).to(keys.dtype)
        dq = tl.dot(t, keys, dq, input_precision=PRECISION)
        t_sum += tl.sum(t.to(tl.float32), 1)
    return dq, t_sum


@kernel
@no_type_check
def queries_backward(
    Q, K, V, Q2, K2, G, OUT, LOG_SUM, DELTA, DQ, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, a, gamma,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dq, and do.o of every row, which `to_keys` reads."""
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    i = start + tl.arange(0, BLOCK_M)
    row_offset = head_index.to(tl.int64) * M
    q, q2 = load_rows(head_ptr(Q, head_index, H, qb0, qh0), i, qm, M, D, True), load_vector(Q2 + row_offset, i, M, True)
    g, log_sum = load_rows(G + row_offset * E, i, E, M, E, True), load_vector(LOG_SUM + row_offset, i, M, True)
    delta = tl.sum(g.to(tl.float32) * load_rows(OUT + row_offset * E, i, E, M, E, True).to(tl.float32), 1)
    tl.store(DELTA + row_offset + i, delta, mask=i < M)
    k, v, k2 = (
        head_ptr(K, head_index, H, kb0, kh0),
        head_ptr(V, head_index, H, vb0, vh0),
        K2 + head_index.to(tl.int64) * N,
    )
    full_end, end = key_range(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    dq, t_sum = tl.zeros([BLOCK_M, D], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    dq, t_sum = queries_pass(dq, t_sum, q, q2, g, log_sum, delta, k, v, k2, kn, vn, i, 0, full_end, M, N, a, gamma,
                             CAUSAL, PRECISION, D, E, BLOCK_N, False)  # fmt: skip
    dq, t_sum = queries_pass(dq, t_sum, q, q2, g, log_sum, delta, k, v, k2, kn, vn, i, full_end, end, M, N, a, gamma,
                             CAUSAL, PRECISION, D, E, BLOCK_N, True)  # fmt: skip
    store_rows(DQ + row_offset * D, i, M, t_sum[:, None] * q.to(tl.float32) - dq, D)


@triton.jit
@no_type_check
def keys_pass(
    dk, dv, t_sum, k, v, k2, q, g, q2, log_sum, delta, sq, j, low, high, M, N, a, gamma,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_M: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """sum_i t q, dv and sum_i t, over queries low..high."""
    for start in range(low, high, BLOCK_M):
        i = start + tl.arange(0, BLOCK_M)
        queries = load_rows(q, i, sq, M, D, MASKED)
        product = tl.dot(k, tl.trans(queries), input_precision=PRECISION)
        dist, inverse = distance_and_inverse(k2[:, None] + load_vector(q2, i, M, MASKED)[None, :] - 2.0 * product)
        p = tl.exp2(dist * a - load_vector(log_sum, i, M, MASKED)[None, :])
        if MASKED:
            p = tl.where(is_allowed(i[None, :], j[:, None], M, N, CAUSAL), p, 0.0)
        gradient = load_rows(g, i, E, M, E, MASKED)
        dv = tl.dot(p.to(gradient.dtype), gradient, dv, input_precision=PRECISION)
        dp = tl.dot(v, tl.trans(gradient), input_precision=PRECISION)
        t = (p * (load_vector(delta, i, M, MASKED)[None, :] - dp) * (inverse * gamma)).to(queries.dtype)
        dk = tl.dot(t, queries, dk, input_precision=PRECISION)
        t_sum += tl.sum(t.to(tl.float32), 1)
    return dk, dv, t_sum


@kernel
@no_type_check
def keys_backward(
    Q, K, V, Q2, K2, G, LOG_SUM, DELTA, DK, DV, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, a, gamma,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head_index = tl.program_id(1)
    start = tl.program_id(0) * BLOCK_N
    j = start + tl.arange(0, BLOCK_N)
    k, v = (
        load_rows(head_ptr(K, head_index, H, kb0, kh0), j, kn, N, D, True),
        load_rows(head_ptr(V, head_index, H, vb0, vh0), j, vn, N, E, True),
    )
    k2, row_offset = load_vector(K2 + head_index.to(tl.int64) * N, j, N, True), head_index.to(tl.int64) * M
    q, g, q2, log_sum, delta = (
        head_ptr(Q, head_index, H, qb0, qh0),
        G + row_offset * E,
        Q2 + row_offset,
        LOG_SUM + row_offset,
        DELTA + row_offset,
    )
    first, full_start, full_end = query_range(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    dk, dv = tl.zeros([BLOCK_N, D], tl.float32), tl.zeros([BLOCK_N, E], tl.float32)
    t_sum = tl.zeros([BLOCK_N], tl.float32)
    dk, dv, t_sum = keys_pass(dk, dv, t_sum, k, v, k2, q, g, q2, log_sum, delta, qm, j, first, tl.minimum(full_start, M),
                              M, N, a, gamma, CAUSAL, PRECISION, D, E, BLOCK_M, True)  # fmt: skip
    dk, dv, t_sum = keys_pass(dk, dv, t_sum, k, v, k2, q, g, q2, log_sum, delta, qm, j, full_start, full_end,
                              M, N, a, gamma, CAUSAL, PRECISION, D, E, BLOCK_M, False)  # fmt: skip
    dk, dv, t_sum = keys_pass(dk, dv, t_sum, k, v, k2, q, g, q2, log_sum, delta, qm, j, full_end, M,
                              M, N, a, gamma, CAUSAL, PRECISION, D, E, BLOCK_M, True)  # fmt: skip
    store_rows(DK + head_index.to(tl.int64) * N * D, j, N, t_sum[:, None] * k.to(tl.float32) - dk, D)
    store_rows(DV + head_index.to(tl.int64) * N * E, j, N, dv, E)


def _constants(q: Tensor, v: Tensor, causal: bool) -> dict[str, Any]:
    return {"CAUSAL": causal, "PRECISION": dot_precision(q), "D": q.shape[-1], "E": v.shape[-1]}


def _squared_norms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).square()


@torch.library.custom_op(
    "rheoscope::laplace",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, float gamma, bool causal) -> (Tensor, Tensor)",
)
def laplace(q: Tensor, k: Tensor, v: Tensor, gamma: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Outputs, and the logarithm (base 2) of what each row is divided by."""
    (b, h, m), n = q.shape[:3], k.shape[-2]
    out, log_sum = _empty_outputs(q, v)
    launch(
        forward,
        FORWARD_TILES[tile_key(q, v)],
        lambda config: (triton.cdiv(m, config.BLOCK_M), b * h),
        *(q, k, v, _squared_norms(q), _squared_norms(k), out, log_sum, *strides(q, k, v), h, m, n, -gamma * LOG2E),
        **_constants(q, v, causal),
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
    (b, h, m), n, g, key = q.shape[:3], k.shape[-2], g.contiguous(), tile_key(q, v)
    dq, dk, dv = _empty_like(q, k, v)
    delta, squares = torch.empty_like(total), (_squared_norms(q), _squared_norms(k))
    launch_args, constants = (*strides(q, k, v), h, m, n, -gamma * LOG2E, gamma), _constants(q, v, causal)
    launch(
        queries_backward,
        QUERIES_TILES[key],
        lambda config: (triton.cdiv(m, config.BLOCK_M), b * h),
        *(q, k, v, *squares, g, out, total, delta, dq, *launch_args),
        **constants,
    )
    launch(
        keys_backward,
        KEYS_TILES[key],
        lambda config: (triton.cdiv(n, config.BLOCK_N), b * h),
        *(q, k, v, *squares, g, total, delta, dk, dv, *launch_args),
        **constants,
    )
    return [dq, dk, dv]


def _empty_outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return v.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


def _empty_like(*tensors: Tensor) -> list[Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors]


@laplace.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, gamma: float, causal: bool) -> tuple[Tensor, Tensor]:
    return _empty_outputs(q, v)


@laplace_backward.register_fake
def _(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *unused: object) -> list[Tensor]:
    return _empty_like(q, k, v)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.settings = inputs[3:]


def _backward(ctx: Any, g: Tensor, grad_log_sum: Tensor) -> tuple[Tensor | None, ...]:
    dq, dk, dv = torch.ops.rheoscope.laplace_backward(g, *ctx.saved_tensors, *ctx.settings)
    return dq, dk, dv, None, None


laplace.register_autograd(_backward, setup_context=_save_for_backward)
