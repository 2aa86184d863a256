"""Triton kernels for weights that depend on one score each (sigmoid and ReLU), in one pass over the keys.

    o_i = r_i sum_j w(s_ij) v_j          s = scale q.k + query bias + key bias, r_i = 1 or 1/(number of keys)
    dv_j = sum_i r_i w(s_ij) do_i,   ds_ij = r_i w'(s_ij) (do_i . v_j),   dq = scale ds k,   dk = scale ds^T q

The rows need no maximum and no sum, so the forward pass saves only its inputs. The backward pass computes s twice: for
each tile of keys (dk, dv) and for each tile of queries (dq).
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheoscope.attention.lower.kernels.tile_table import tiles_for
from rheoscope.attention.lower.kernels.tiles import (
    LOG2E,
    Keys,
    dot_precision,
    empty_like,
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
    query_grid,
    query_range,
    store_rows,
    with_strides,
    zero_rows,
    zero_vector,
)


class Spec(NamedTuple):
    """Compile-time constants; D and E are the widths of keys and values."""

    SIGMOID: bool
    CAUSAL: bool
    BIAS: bool
    FAST: bool
    PRECISION: str
    D: int
    E: int


class Score(NamedTuple):
    """The argument of `weight` is z = slope q.k + offset + bias (query bias + key bias)."""

    slope: Any
    offset: Any
    bias: Any


class Queries(NamedTuple):
    """The queries of one head: rows, and the addresses of the output's gradient and of the biases."""

    q: Any
    g: Any
    bias: Any


@triton.jit
@no_type_check
def weight(z, SIGMOID: tl.constexpr, FAST: tl.constexpr):
    """w(s) from z: 1/(1 + 2^z), where the slope contains -log2(e), or max(z, 0)."""
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
    """w'(s) from w(s)."""
    return w - w * w if SIGMOID else (w > 0).to(tl.float32)


@triton.jit
@no_type_check
def row_scale(i, M, N, SIGMOID: tl.constexpr, CAUSAL: tl.constexpr):
    """r_i: 1 for the sigmoid, and 1/(number of keys that query i may see) for ReLU."""
    r = tl.full(i.shape, 1.0, tl.float32)
    if not SIGMOID:
        r = 1.0 / tl.maximum(i + (N - M + 1), 1).to(tl.float32) if CAUSAL else r / N
    return r


@triton.jit
@no_type_check
def forward_pass(
    acc, q, qb, i, keys, low, high, M, N, score, SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr
):
    """acc + sum_j w(s_ij) v_j over the keys from low to high."""
    for start in range(low, high, TILE.BLOCK_N):
        j = start + tl.arange(0, TILE.BLOCK_N)
        product = tl.dot(q, load_transposed(keys.k, j, N, SPEC.D, MASKED), input_precision=SPEC.PRECISION)
        z = product * score.slope + score.offset
        if SPEC.BIAS:
            z += (qb[:, None] + load_vector(keys.vector, j, N, MASKED)[None, :]) * score.bias
        w = weight(z, SPEC.SIGMOID, SPEC.FAST)
        if MASKED:
            w = tl.where(is_allowed(i[:, None], j[None, :], M, N, SPEC.CAUSAL), w, 0.0)
        values = load_rows(keys.v, j, N, SPEC.E, MASKED)
        acc = tl.dot(w.to(values.dtype), values, acc, input_precision=SPEC.PRECISION)
    return acc


@kernel
@no_type_check
def forward(Q, K, V, QB, KB, OUT, H, M, N, score, SPEC: tl.constexpr, TILE: tl.constexpr):
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * TILE.BLOCK_M  # the longest rows first
    i = start + tl.arange(0, TILE.BLOCK_M)
    q = load_rows(head_rows(Q, head_index, H), i, M, SPEC.D, True)
    qb, kb = i.to(tl.float32), KB
    if SPEC.BIAS:
        qb, kb = load_vector(QB + head_index.to(tl.int64) * M, i, M, True), KB + head_index.to(tl.int64) * N
    keys = Keys(head_rows(K, head_index, H), head_rows(V, head_index, H), kb)
    full_end, end = key_range(start, M, N, SPEC.CAUSAL, TILE)
    acc = zero_rows(TILE.BLOCK_M, SPEC.E)
    acc = forward_pass(acc, q, qb, i, keys, 0, full_end, M, N, score, SPEC, TILE, False)
    acc = forward_pass(acc, q, qb, i, keys, full_end, end, M, N, score, SPEC, TILE, True)
    acc = acc * row_scale(i, M, N, SPEC.SIGMOID, SPEC.CAUSAL)[:, None]
    store_rows(OUT + head_index.to(tl.int64) * M * SPEC.E, i, M, acc, SPEC.E)


@triton.jit
@no_type_check
def keys_pass(
    dk, dv, db, k, v, kb, j, queries, low, high, M, N, score,
    SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """dk, dv and the gradient of the key bias, summed over the queries from low to high."""
    for start in range(low, high, TILE.BLOCK_M):
        i = start + tl.arange(0, TILE.BLOCK_M)
        q = load_rows(queries.q, i, M, SPEC.D, MASKED)
        z = tl.dot(k, tl.trans(q), input_precision=SPEC.PRECISION) * score.slope + score.offset
        if SPEC.BIAS:
            z += (load_vector(queries.bias, i, M, MASKED)[None, :] + kb[:, None]) * score.bias
        w = weight(z, SPEC.SIGMOID, SPEC.FAST)
        if MASKED:
            w = tl.where(is_allowed(i[None, :], j[:, None], M, N, SPEC.CAUSAL), w, 0.0)
        r = row_scale(i, M, N, SPEC.SIGMOID, SPEC.CAUSAL)
        g = load_contiguous(queries.g, i, M, SPEC.E, MASKED)
        dv = tl.dot((w * r[None, :]).to(g.dtype), g, dv, input_precision=SPEC.PRECISION)
        dp = tl.dot(v, tl.trans(g), input_precision=SPEC.PRECISION)
        ds = dp * weight_derivative(w, SPEC.SIGMOID) * r[None, :]
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=SPEC.PRECISION)
        if SPEC.BIAS:
            db += tl.sum(ds, 1)
    return dk, dv, db


@kernel
@no_type_check
def keys_backward(Q, K, V, QB, KB, G, DK, DV, DB, H, M, N, scale, score, SPEC: tl.constexpr, TILE: tl.constexpr):
    head_index = tl.program_id(1)
    start = tl.program_id(0) * TILE.BLOCK_N
    j = start + tl.arange(0, TILE.BLOCK_N)
    k = load_rows(head_rows(K, head_index, H), j, N, SPEC.D, True)
    v = load_rows(head_rows(V, head_index, H), j, N, SPEC.E, True)
    kb, qb = j.to(tl.float32), QB
    if SPEC.BIAS:
        kb, qb = load_vector(KB + head_index.to(tl.int64) * N, j, N, True), QB + head_index.to(tl.int64) * M
    queries = Queries(head_rows(Q, head_index, H), G + head_index.to(tl.int64) * M * SPEC.E, qb)
    first, full_start, full_end = query_range(start, M, N, SPEC.CAUSAL, TILE)
    dk, dv = zero_rows(TILE.BLOCK_N, SPEC.D), zero_rows(TILE.BLOCK_N, SPEC.E)
    db = zero_vector(TILE.BLOCK_N)
    dk, dv, db = keys_pass(
        dk, dv, db, k, v, kb, j, queries, first, tl.minimum(full_start, M), M, N, score, SPEC, TILE, True
    )
    dk, dv, db = keys_pass(dk, dv, db, k, v, kb, j, queries, full_start, full_end, M, N, score, SPEC, TILE, False)
    dk, dv, db = keys_pass(dk, dv, db, k, v, kb, j, queries, full_end, M, M, N, score, SPEC, TILE, True)
    store_rows(DK + head_index.to(tl.int64) * N * SPEC.D, j, N, dk * scale, SPEC.D)
    store_rows(DV + head_index.to(tl.int64) * N * SPEC.E, j, N, dv, SPEC.E)
    if SPEC.BIAS:
        tl.store(DB + head_index.to(tl.int64) * N + j, db, mask=j < N)


@triton.jit
@no_type_check
def queries_pass(
    dq, db, q, g, qb, i, keys, low, high, M, N, score, SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr
):
    """dq and the gradient of the query bias, summed over the keys from low to high."""
    for start in range(low, high, TILE.BLOCK_N):
        j = start + tl.arange(0, TILE.BLOCK_N)
        k = load_rows(keys.k, j, N, SPEC.D, MASKED)
        z = tl.dot(q, tl.trans(k), input_precision=SPEC.PRECISION) * score.slope + score.offset
        if SPEC.BIAS:
            z += (qb[:, None] + load_vector(keys.vector, j, N, MASKED)[None, :]) * score.bias
        w = weight(z, SPEC.SIGMOID, SPEC.FAST)
        if MASKED:
            w = tl.where(is_allowed(i[:, None], j[None, :], M, N, SPEC.CAUSAL), w, 0.0)
        dp = tl.dot(g, load_transposed(keys.v, j, N, SPEC.E, MASKED), input_precision=SPEC.PRECISION)
        ds = dp * weight_derivative(w, SPEC.SIGMOID)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=SPEC.PRECISION)
        if SPEC.BIAS:
            db += tl.sum(ds, 1)
    return dq, db


@kernel
@no_type_check
def queries_backward(Q, K, V, QB, KB, G, DQ, DB, H, M, N, scale, score, SPEC: tl.constexpr, TILE: tl.constexpr):
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * TILE.BLOCK_M
    i = start + tl.arange(0, TILE.BLOCK_M)
    q = load_rows(head_rows(Q, head_index, H), i, M, SPEC.D, True)
    g = load_contiguous(G + head_index.to(tl.int64) * M * SPEC.E, i, M, SPEC.E, True)
    qb, kb = i.to(tl.float32), KB
    if SPEC.BIAS:
        qb, kb = load_vector(QB + head_index.to(tl.int64) * M, i, M, True), KB + head_index.to(tl.int64) * N
    keys = Keys(head_rows(K, head_index, H), head_rows(V, head_index, H), kb)
    r = row_scale(i, M, N, SPEC.SIGMOID, SPEC.CAUSAL)
    full_end, end = key_range(start, M, N, SPEC.CAUSAL, TILE)
    dq, db = zero_rows(TILE.BLOCK_M, SPEC.D), zero_vector(TILE.BLOCK_M)
    dq, db = queries_pass(dq, db, q, g, qb, i, keys, 0, full_end, M, N, score, SPEC, TILE, False)
    dq, db = queries_pass(dq, db, q, g, qb, i, keys, full_end, end, M, N, score, SPEC, TILE, True)
    store_rows(DQ + head_index.to(tl.int64) * M * SPEC.D, i, M, dq * (r * scale)[:, None], SPEC.D)
    if SPEC.BIAS:
        tl.store(DB + head_index.to(tl.int64) * M + i, db * r, mask=i < M)


def _spec(q: Tensor, v: Tensor, key_bias: Tensor | None, sigmoid: bool, causal: bool) -> Spec:
    fast = q.is_cuda and q.dtype != torch.float32
    return Spec(sigmoid, causal, key_bias is not None, fast, dot_precision(q), q.shape[-1], v.shape[-1])


def _score(scale: float, bias: float, sigmoid: bool) -> Score:
    return Score(-scale * LOG2E, -bias * LOG2E, -LOG2E) if sigmoid else Score(scale, 0.0, 1.0)


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
    """Attention outputs with weights sigmoid(s + bias) or max(s, 0)/n."""
    h, m, n = q.shape[1], q.shape[-2], k.shape[-2]
    out = v.new_empty(*q.shape[:3], v.shape[-1])
    launch(
        forward,
        tiles_for("pointwise.forward", q, v),
        query_grid(q),
        *map(with_strides, (q, k, v)),
        *(query_bias, key_bias, out, h, m, n, _score(scale, bias, sigmoid)),
        spec=_spec(q, v, key_bias, sigmoid, causal),
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
    inputs = (*map(with_strides, (q, k, v)), query_bias, key_bias, g.contiguous())
    sizes = (q.shape[1], q.shape[-2], k.shape[-2], scale, _score(scale, bias, sigmoid))
    spec = _spec(q, v, key_bias, sigmoid, causal)
    key_tiles, query_tiles = tiles_for("pointwise.keys_backward", q, v), tiles_for("pointwise.queries_backward", q, v)
    launch(keys_backward, key_tiles, key_grid(k), *inputs, dk, dv, dkb, *sizes, spec=spec)
    launch(queries_backward, query_tiles, query_grid(q), *inputs, dq, dqb, *sizes, spec=spec)
    return [dq, dk, dv, dqb, dkb]


def _empty_gradients(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Memory for the gradients of q, k and v and, in float32, of the two biases."""
    return empty_like(q, k, v) + [torch.empty(x.shape[:3], dtype=torch.float32, device=x.device) for x in (q, k)]


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
