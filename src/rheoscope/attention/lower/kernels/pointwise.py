"""Weights of one score each (sigmoid, ReLU) in one pass: no maximum, no sum, nothing kept but the inputs.

    o_i = r_i sum_j w(s_ij) v_j          s = scale q.k + query bias + key bias, r_i = 1 or 1/(number of keys)
    dv_j = sum_i r_i w(s_ij) do_i,   ds_ij = r_i w'(s_ij) (do_i . v_j),   dq = scale ds k,   dk = scale ds^T q

The backward pass computes s again, once a tile of keys (dk, dv) and once a tile of queries (dq).
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
"""Tiles by the kind of rows, the fastest first (measured on an H200)."""
KEYS_TILES = {
    "half": [TileConfig(64, 64, 4, 3), TileConfig(32, 64, 4, 2)],
    "wide": [TileConfig(32, 64, 4, 3), TileConfig(32, 32, 4, 2)],
    "single": [TileConfig(32, 64, 4, 1), TileConfig(16, 32, 4, 1)],
}
QUERIES_TILES = {
    "half": [TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)],
    "wide": [TileConfig(128, 64, 8, 3), TileConfig(64, 32, 4, 2)],
    "single": [TileConfig(64, 32, 4, 1), TileConfig(32, 16, 4, 1)],
}


@triton.jit
@no_type_check
def weight(z, SIGMOID: tl.constexpr, FAST: tl.constexpr):
    """w of a score z = a s + c: 1/(1 + 2^z) where a is -log2(e), or max(z, 0)."""
    if SIGMOID:
        denominator = 1.0 + tl.exp2(z)
        if FAST:
            w = tl.inline_asm_elementwise(
                "rcp.approx.ftz.f32 $0, $1;", "=f,f", [denominator], dtype=tl.float32, is_pure=True, pack=1
            )
        else:
            w = 1.0 / denominator
    else:
        w = tl.maximum(z, 0.0)
    return w


@triton.jit
@no_type_check
def weight_derivative(w, SIGMOID: tl.constexpr):
    """w' from w."""
    return w - w * w if SIGMOID else (w > 0).to(tl.float32)


@triton.jit
@no_type_check
def row_scale(i, M, N, SIGMOID: tl.constexpr, CAUSAL: tl.constexpr):
    """r_i: 1, or one over the number of keys that query i may see."""
    r = tl.full(i.shape, 1.0, tl.float32)
    if not SIGMOID:
        r = 1.0 / tl.maximum(i + (N - M + 1), 1).to(tl.float32) if CAUSAL else r / N
    return r


@triton.jit
@no_type_check
def forward_pass(
    acc, q, qb, k, v, kb, sk, sv, i, low, high, M, N, a, c, bias_scale,
    SIGMOID: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """acc + sum_j w(s_ij) v_j over keys low..high."""
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        z = tl.dot(q, load_transposed(k, j, sk, N, D, MASKED), input_precision=PRECISION) * a + c
        if BIAS:
            z += (qb[:, None] + load_vector(kb, j, N, MASKED)[None, :]) * bias_scale
        w = weight(z, SIGMOID, FAST)
        if MASKED:
            w = tl.where(is_allowed(i[:, None], j[None, :], M, N, CAUSAL), w, 0.0)
        values = load_rows(v, j, sv, N, E, MASKED)
        acc = tl.dot(w.to(values.dtype), values, acc, input_precision=PRECISION)
    return acc


@kernel
@no_type_check
def forward(
    Q, K, V, QB, KB, OUT, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, a, c, bias_scale,
    SIGMOID: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # the longest rows first
    i = start + tl.arange(0, BLOCK_M)
    q = load_rows(head_ptr(Q, head_index, H, qb0, qh0), i, qm, M, D, True)
    k, v = head_ptr(K, head_index, H, kb0, kh0), head_ptr(V, head_index, H, vb0, vh0)
    qb, kb = i.to(tl.float32), KB
    if BIAS:
        qb, kb = load_vector(QB + head_index.to(tl.int64) * M, i, M, True), KB + head_index.to(tl.int64) * N
    full_end, end = key_range(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    acc = tl.zeros([BLOCK_M, E], tl.float32)
    acc = forward_pass(acc, q, qb, k, v, kb, kn, vn, i, 0, full_end, M, N, a, c, bias_scale,
                  SIGMOID, CAUSAL, BIAS, FAST, PRECISION, D, E, BLOCK_N, False)  # fmt: skip
    acc = forward_pass(acc, q, qb, k, v, kb, kn, vn, i, full_end, end, M, N, a, c, bias_scale,
                  SIGMOID, CAUSAL, BIAS, FAST, PRECISION, D, E, BLOCK_N, True)  # fmt: skip
    acc = acc * row_scale(i, M, N, SIGMOID, CAUSAL)[:, None]
    store_rows(OUT + head_index.to(tl.int64) * M * E, i, M, acc, E)


@triton.jit
@no_type_check
def keys_pass(
    dk, dv, db, k, v, kb, q, g, qb, sq, j, low, high, M, N, a, c, bias_scale,
    SIGMOID: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_M: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """dk, dv and the key bias's gradient, summed over queries low..high."""
    for start in range(low, high, BLOCK_M):
        i = start + tl.arange(0, BLOCK_M)
        queries = load_rows(q, i, sq, M, D, MASKED)
        z = tl.dot(k, tl.trans(queries), input_precision=PRECISION) * a + c
        if BIAS:
            z += (load_vector(qb, i, M, MASKED)[None, :] + kb[:, None]) * bias_scale
        w = weight(z, SIGMOID, FAST)
        if MASKED:
            w = tl.where(is_allowed(i[None, :], j[:, None], M, N, CAUSAL), w, 0.0)
        r = row_scale(i, M, N, SIGMOID, CAUSAL)
        gradient = load_rows(g, i, E, M, E, MASKED)
        dv = tl.dot((w * r[None, :]).to(gradient.dtype), gradient, dv, input_precision=PRECISION)
        ds = tl.dot(v, tl.trans(gradient), input_precision=PRECISION) * weight_derivative(w, SIGMOID) * r[None, :]
        dk = tl.dot(ds.to(queries.dtype), queries, dk, input_precision=PRECISION)
        if BIAS:
            db += tl.sum(ds, 1)
    return dk, dv, db


@kernel
@no_type_check
def keys_backward(
    Q, K, V, QB, KB, G, DK, DV, DB, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, scale, a, c, bias_scale,
    SIGMOID: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head_index = tl.program_id(1)
    start = tl.program_id(0) * BLOCK_N
    j = start + tl.arange(0, BLOCK_N)
    k = load_rows(head_ptr(K, head_index, H, kb0, kh0), j, kn, N, D, True)
    v = load_rows(head_ptr(V, head_index, H, vb0, vh0), j, vn, N, E, True)
    q, g = head_ptr(Q, head_index, H, qb0, qh0), G + head_index.to(tl.int64) * M * E
    kb, qb = j.to(tl.float32), QB
    if BIAS:
        kb, qb = load_vector(KB + head_index.to(tl.int64) * N, j, N, True), QB + head_index.to(tl.int64) * M
    first, full_start, full_end = query_range(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    dk, dv = tl.zeros([BLOCK_N, D], tl.float32), tl.zeros([BLOCK_N, E], tl.float32)
    db = tl.zeros([BLOCK_N], tl.float32)
    dk, dv, db = keys_pass(dk, dv, db, k, v, kb, q, g, qb, qm, j, first, tl.minimum(full_start, M), M, N, a, c, bias_scale,
                           SIGMOID, CAUSAL, BIAS, FAST, PRECISION, D, E, BLOCK_M, True)  # fmt: skip
    dk, dv, db = keys_pass(dk, dv, db, k, v, kb, q, g, qb, qm, j, full_start, full_end, M, N, a, c, bias_scale,
                           SIGMOID, CAUSAL, BIAS, FAST, PRECISION, D, E, BLOCK_M, False)  # fmt: skip
    dk, dv, db = keys_pass(dk, dv, db, k, v, kb, q, g, qb, qm, j, full_end, M, M, N, a, c, bias_scale,
                           SIGMOID, CAUSAL, BIAS, FAST, PRECISION, D, E, BLOCK_M, True)  # fmt: skip
    store_rows(DK + head_index.to(tl.int64) * N * D, j, N, dk * scale, D)
    store_rows(DV + head_index.to(tl.int64) * N * E, j, N, dv, E)
    if BIAS:
        tl.store(DB + head_index.to(tl.int64) * N + j, db, mask=j < N)


@triton.jit
@no_type_check
def queries_pass(
    dq, db, q, g, qb, r, k, v, kb, sk, sv, i, low, high, M, N, a, c, bias_scale,
    SIGMOID: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """dq and the query bias's gradient, summed over keys low..high."""
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        keys = load_rows(k, j, sk, N, D, MASKED)
        z = tl.dot(q, tl.trans(keys), input_precision=PRECISION) * a + c
        if BIAS:
            z += (qb[:, None] + load_vector(kb, j, N, MASKED)[None, :]) * bias_scale
        w = weight(z, SIGMOID, FAST)
        if MASKED:
            w = tl.where(is_allowed(i[:, None], j[None, :], M, N, CAUSAL), w, 0.0)
        ds = tl.dot(g, load_transposed(v, j, sv, N, E, MASKED), input_precision=PRECISION) * weight_derivative(
            w, SIGMOID
        )
        dq = tl.dot(ds.to(keys.dtype), keys, dq, input_precision=PRECISION)
        if BIAS:
            db += tl.sum(ds, 1)
    return dq, db


@kernel
@no_type_check
def queries_backward(
    Q, K, V, QB, KB, G, DQ, DB, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, scale, a, c, bias_scale,
    SIGMOID: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    i = start + tl.arange(0, BLOCK_M)
    q = load_rows(head_ptr(Q, head_index, H, qb0, qh0), i, qm, M, D, True)
    g = load_rows(G + head_index.to(tl.int64) * M * E, i, E, M, E, True)
    k, v = head_ptr(K, head_index, H, kb0, kh0), head_ptr(V, head_index, H, vb0, vh0)
    qb, kb = i.to(tl.float32), KB
    if BIAS:
        qb, kb = load_vector(QB + head_index.to(tl.int64) * M, i, M, True), KB + head_index.to(tl.int64) * N
    r = row_scale(i, M, N, SIGMOID, CAUSAL)
    full_end, end = key_range(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    dq, db = tl.zeros([BLOCK_M, D], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    dq, db = queries_pass(dq, db, q, g, qb, r, k, v, kb, kn, vn, i, 0, full_end, M, N, a, c, bias_scale,
                          SIGMOID, CAUSAL, BIAS, FAST, PRECISION, D, E, BLOCK_N, False)  # fmt: skip
    dq, db = queries_pass(dq, db, q, g, qb, r, k, v, kb, kn, vn, i, full_end, end, M, N, a, c, bias_scale,
                          SIGMOID, CAUSAL, BIAS, FAST, PRECISION, D, E, BLOCK_N, True)  # fmt: skip
    store_rows(DQ + head_index.to(tl.int64) * M * D, i, M, dq * (r * scale)[:, None], D)
    if BIAS:
        tl.store(DB + head_index.to(tl.int64) * M + i, db * r, mask=i < M)


def _constants(q: Tensor, v: Tensor, key_bias: Tensor | None, sigmoid: bool, causal: bool) -> dict[str, Any]:
    return {
        "SIGMOID": sigmoid,
        "CAUSAL": causal,
        "BIAS": key_bias is not None,
        "FAST": q.is_cuda and q.dtype != torch.float32,
        "PRECISION": dot_precision(q),
        "D": q.shape[-1],
        "E": v.shape[-1],
    }


def _score_coefficients(scale: float, bias: float, sigmoid: bool) -> tuple[float, float, float]:
    """a, c and the factor of biases, with which the argument of `weight` is a q.k + c + factor (query bias + key bias)."""
    return (-scale * LOG2E, -bias * LOG2E, -LOG2E) if sigmoid else (scale, 0.0, 1.0)


@torch.library.custom_op(
    "rheoscope::pointwise",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? query_bias, Tensor? key_bias, float scale, float bias, bool sigmoid, "
    "bool causal) -> Tensor",
)
def pointwise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_bias: Tensor | None,
    key_bias: Tensor | None,
    scale: float,
    bias: float,
    sigmoid: bool,
    causal: bool,
) -> Tensor:
    """Outputs of weights sigmoid(s + bias) or max(s, 0)/n."""
    b, h, m = q.shape[:3]
    out = v.new_empty(b, h, m, v.shape[-1])
    launch(
        forward,
        FORWARD_TILES[tile_key(q, v)],
        lambda config: (triton.cdiv(m, config.BLOCK_M), b * h),
        *(
            q,
            k,
            v,
            query_bias,
            key_bias,
            out,
            *strides(q, k, v),
            h,
            m,
            k.shape[-2],
            *_score_coefficients(scale, bias, sigmoid),
        ),
        **_constants(q, v, key_bias, sigmoid, causal),
    )
    return out


@torch.library.custom_op(
    "rheoscope::pointwise_backward",
    mutates_args=(),
    schema="(Tensor g, Tensor q, Tensor k, Tensor v, Tensor? query_bias, Tensor? key_bias, float scale, float bias, "
    "bool sigmoid, bool causal) -> Tensor[]",
)
def pointwise_backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_bias: Tensor | None,
    key_bias: Tensor | None,
    scale: float,
    bias: float,
    sigmoid: bool,
    causal: bool,
) -> list[Tensor]:
    """The gradients of q, k, v and of the two biases."""
    dq, dk, dv, dqb, dkb = _empty_gradients(q, k, v)
    (b, h, m), n, g = q.shape[:3], k.shape[-2], g.contiguous()
    launch_args = (*strides(q, k, v), h, m, n, scale, *_score_coefficients(scale, bias, sigmoid))
    constants, key = _constants(q, v, key_bias, sigmoid, causal), tile_key(q, v)
    launch(
        keys_backward,
        KEYS_TILES[key],
        lambda config: (triton.cdiv(n, config.BLOCK_N), b * h),
        *(q, k, v, query_bias, key_bias, g, dk, dv, dkb, *launch_args),
        **constants,
    )
    launch(
        queries_backward,
        QUERIES_TILES[key],
        lambda config: (triton.cdiv(m, config.BLOCK_M), b * h),
        *(q, k, v, query_bias, key_bias, g, dq, dqb, *launch_args),
        **constants,
    )
    return [dq, dk, dv, dqb, dkb]


def _empty_gradients(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Room for the gradients of q, k, v and, in float32, of the two biases."""
    gradients = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)]
    return gradients + [torch.empty(x.shape[:3], dtype=torch.float32, device=x.device) for x in (q, k)]


@pointwise.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *unused: object) -> Tensor:
    return v.new_empty(*q.shape[:3], v.shape[-1])


@pointwise_backward.register_fake
def _(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *unused: object) -> list[Tensor]:
    return _empty_gradients(q, k, v)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.settings = inputs[5:]


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    dq, dk, dv, dqb, dkb = torch.ops.rheoscope.pointwise_backward(g, *ctx.saved_tensors, *ctx.settings)
    has_bias = ctx.saved_tensors[3] is not None
    return dq, dk, dv, dqb if has_bias else None, dkb if has_bias else None, *(None,) * len(ctx.settings)


pointwise.register_autograd(_backward, setup_context=_save_for_backward)
