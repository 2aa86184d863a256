"""Triton kernels for the softmax of additive scores s_ij = w . tanh(a_i + c_j), in one pass over tiles.

The scores are not matrix products. Every pair costs one tanh for each hidden unit, which dominates the time. A program
owns a tile of tokens of one side, one for each thread, and loops over the tokens of the other side. Every sum over these
stays within a thread, so tiles have the shape (walked, owned). The hidden rows a = q W and c = k U have the shape
(b, h, units, tokens) and are padded to whole tiles, so one unit of consecutive tokens is contiguous in memory.

Backward, with ds = p (dp - do.o):   da_i = w sum_j ds_ij (1 - t_ij^2),   dc_j the same over i,   dw = sum_ij ds_ij t_ij.
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from rheoscope.attention.lower.kernels.tile_table import OWNED_TOKENS, tiles_for
from rheoscope.attention.lower.kernels.tiles import (
    MASKED_SCORE,
    HeadRows,
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
    """Compile-time constants: UNITS hidden units, width E of the values, and FAST for the GPU's approximate tanh."""

    CAUSAL: bool
    UNITS: int
    FAST: bool
    PRECISION: str
    E: int


class Hidden(NamedTuple):
    """Hidden rows as a kernel receives them: their address and the number of tokens with padding."""

    ptr: Any
    n_tokens: Any


@triton.jit
@no_type_check
def hidden_rows(x, head_index, UNITS: tl.constexpr):
    """The hidden rows of one head, one row for each unit."""
    return HeadRows(x.ptr + head_index.to(tl.int64) * UNITS * x.n_tokens, x.n_tokens)


@triton.jit
@no_type_check
def tanh(x, FAST: tl.constexpr):
    """tanh(x), with the approximate instruction of the GPU where FAST."""
    if FAST:
        y = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        y = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))
    return y


@triton.jit
@no_type_check
def scores(
    owned, walked, w, owned_index, walked_index, SPEC: tl.constexpr, N_OWNED: tl.constexpr, N_WALKED: tl.constexpr
):
    """w . tanh(a_i + c_j) of a tile (walked, owned)."""
    s = tl.zeros([N_WALKED, N_OWNED], tl.float32)
    for unit in tl.range(0, SPEC.UNITS, loop_unroll_factor=8):  # load eight units at a time
        owned_unit = tl.load(owned.ptr + unit * owned.row_stride + owned_index)
        walked_unit = tl.load(walked.ptr + unit * walked.row_stride + walked_index)
        s += tl.load(w + unit) * tanh(owned_unit[None, :] + walked_unit[:, None], SPEC.FAST)
    return s


@triton.jit
@no_type_check
def forward_pass(
    acc, row_max, exp_sum, a, c, w, v, i, low, high, M, N,
    SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The weighted sum of values, the running maximum and the sum of exponentials, over the keys from low to high."""
    for start in range(low, high, TILE.BLOCK_N):
        j = start + tl.arange(0, TILE.BLOCK_N)
        z = scores(a, c, w, i, j, SPEC, TILE.BLOCK_M, TILE.BLOCK_N) * 1.4426950408889634
        if MASKED:
            z = tl.where(is_allowed(i[None, :], j[:, None], M, N, SPEC.CAUSAL), z, MASKED_SCORE)
        new_max = tl.maximum(row_max, tl.max(z, 0))
        e, rescale = tl.exp2(z - new_max[None, :]), tl.exp2(row_max - new_max)
        values = load_rows(v, j, N, SPEC.E, MASKED)
        acc = tl.dot(tl.trans(e.to(values.dtype)), values, acc * rescale[:, None], input_precision=SPEC.PRECISION)
        exp_sum = exp_sum * rescale + tl.sum(e, 0)
        row_max = new_max
    return acc, row_max, exp_sum


@kernel
@no_type_check
def forward(A, C, W, V, OUT, LOG_SUM, H, M, N, SPEC: tl.constexpr, TILE: tl.constexpr):
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * TILE.BLOCK_M  # the longest rows first
    i = start + tl.arange(0, TILE.BLOCK_M)
    a, c = hidden_rows(A, head_index, SPEC.UNITS), hidden_rows(C, head_index, SPEC.UNITS)
    w, v = W + head_index % H * SPEC.UNITS, head_rows(V, head_index, H)
    full_end, end = key_range(start, M, N, SPEC.CAUSAL, TILE)
    acc = zero_rows(TILE.BLOCK_M, SPEC.E)
    row_max, exp_sum = masked_vector(TILE.BLOCK_M), zero_vector(TILE.BLOCK_M)
    acc, row_max, exp_sum = forward_pass(acc, row_max, exp_sum, a, c, w, v, i, 0, full_end, M, N, SPEC, TILE, False)
    acc, row_max, exp_sum = forward_pass(acc, row_max, exp_sum, a, c, w, v, i, full_end, end, M, N, SPEC, TILE, True)
    store_rows(OUT + head_index.to(tl.int64) * M * SPEC.E, i, M, acc / exp_sum[:, None], SPEC.E)
    tl.store(LOG_SUM + head_index.to(tl.int64) * M + i, row_max + tl.log2(exp_sum), mask=i < M)


@kernel
@no_type_check
def keys_backward(A, C, W, V, G, LOG_SUM, DELTA, DC, DV, H, M, N, SPEC: tl.constexpr, TILE: tl.constexpr):
    head_index, start = tl.program_id(1), tl.program_id(0) * TILE.BLOCK_N
    j, units = start + tl.arange(0, TILE.BLOCK_N), tl.arange(0, SPEC.UNITS)
    a, c = hidden_rows(A, head_index, SPEC.UNITS), hidden_rows(C, head_index, SPEC.UNITS)
    w, v = W + head_index % H * SPEC.UNITS, load_rows(head_rows(V, head_index, H), j, N, SPEC.E, True)
    log_sum, delta = LOG_SUM + head_index.to(tl.int64) * M, DELTA + head_index.to(tl.int64) * M
    dc, dv = zero_rows(SPEC.UNITS, TILE.BLOCK_N), zero_rows(TILE.BLOCK_N, SPEC.E)
    first, _full_start, _full_end = query_range(start, M, N, SPEC.CAUSAL, TILE)
    for low in range(first, M, TILE.BLOCK_M):
        i = low + tl.arange(0, TILE.BLOCK_M)
        g = load_contiguous(G + head_index.to(tl.int64) * M * SPEC.E, i, M, SPEC.E, True)
        z = scores(c, a, w, j, i, SPEC, TILE.BLOCK_N, TILE.BLOCK_M) * 1.4426950408889634
        p = tl.exp2(z - load_vector(log_sum, i, M, True)[:, None])
        p = tl.where(is_allowed(i[:, None], j[None, :], M, N, SPEC.CAUSAL), p, 0.0)
        dv = tl.dot(tl.trans(p.to(g.dtype)), g, dv, input_precision=SPEC.PRECISION)
        dp = tl.trans(tl.dot(v, tl.trans(g), input_precision=SPEC.PRECISION))
        ds = p * (dp - load_vector(delta, i, M, True)[:, None])
        for unit in range(SPEC.UNITS):
            t = tanh(
                tl.load(c.ptr + unit * c.row_stride + j)[None, :] + tl.load(a.ptr + unit * a.row_stride + i)[:, None],
                SPEC.FAST,
            )
            dc = tl.where((units == unit)[:, None], dc + tl.sum(ds - ds * t * t, 0)[None, :], dc)
    unit_offsets = head_index.to(tl.int64) * SPEC.UNITS * c.row_stride + units[:, None] * c.row_stride + j[None, :]
    tl.store(DC + unit_offsets, dc * tl.load(w + units)[:, None])
    store_rows(DV + head_index.to(tl.int64) * N * SPEC.E, j, N, dv, SPEC.E)


@kernel
@no_type_check
def queries_backward(A, C, W, V, G, LOG_SUM, DELTA, DA, DW, H, M, N, SPEC: tl.constexpr, TILE: tl.constexpr):
    """da, and the contribution of every query to dw."""
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * TILE.BLOCK_M
    i, units = start + tl.arange(0, TILE.BLOCK_M), tl.arange(0, SPEC.UNITS)
    a, c = hidden_rows(A, head_index, SPEC.UNITS), hidden_rows(C, head_index, SPEC.UNITS)
    w, v_rows = W + head_index % H * SPEC.UNITS, head_rows(V, head_index, H)
    g = load_contiguous(G + head_index.to(tl.int64) * M * SPEC.E, i, M, SPEC.E, True)
    log_sum, delta = (
        load_vector(LOG_SUM + head_index.to(tl.int64) * M, i, M, True),
        load_vector(DELTA + head_index.to(tl.int64) * M, i, M, True),
    )
    da, dw = zero_rows(SPEC.UNITS, TILE.BLOCK_M), zero_rows(SPEC.UNITS, TILE.BLOCK_M)
    _full_end, end = key_range(start, M, N, SPEC.CAUSAL, TILE)
    for low in range(0, end, TILE.BLOCK_N):
        j = low + tl.arange(0, TILE.BLOCK_N)
        v = load_rows(v_rows, j, N, SPEC.E, True)
        z = scores(a, c, w, i, j, SPEC, TILE.BLOCK_M, TILE.BLOCK_N) * 1.4426950408889634
        p = tl.where(is_allowed(i[None, :], j[:, None], M, N, SPEC.CAUSAL), tl.exp2(z - log_sum[None, :]), 0.0)
        dp = tl.trans(tl.dot(g, tl.trans(v), input_precision=SPEC.PRECISION))
        ds = p * (dp - delta[None, :])
        for unit in range(SPEC.UNITS):
            t = tanh(
                tl.load(a.ptr + unit * a.row_stride + i)[None, :] + tl.load(c.ptr + unit * c.row_stride + j)[:, None],
                SPEC.FAST,
            )
            is_unit, ds_t = (units == unit)[:, None], ds * t
            da = tl.where(is_unit, da + tl.sum(ds - ds_t * t, 0)[None, :], da)
            dw = tl.where(is_unit, dw + tl.sum(ds_t, 0)[None, :], dw)
    unit_offsets = head_index.to(tl.int64) * SPEC.UNITS * a.row_stride + units[:, None] * a.row_stride + i[None, :]
    tl.store(DA + unit_offsets, da * tl.load(w + units)[:, None])
    tl.store(DW + unit_offsets, dw)


def to_hidden_layout(x: Tensor) -> Tensor:
    """Hidden rows (b, h, tokens, units) as (b, h, units, tokens), padded to whole tiles."""
    return pad(x.mT, (0, -x.shape[-2] % OWNED_TOKENS)).contiguous()


def _spec(a: Tensor, v: Tensor, causal: bool) -> Spec:
    fast = v.is_cuda and v.dtype == torch.bfloat16  # the error of 2^-11 would be visible in float16
    return Spec(causal, a.shape[-2], fast, dot_precision(v), v.shape[-1])


def _hidden(*tensors: Tensor) -> tuple[Hidden, ...]:
    return tuple(Hidden(x, x.shape[-1]) for x in tensors)


@torch.library.custom_op(
    "rheoscope::additive",
    mutates_args=(),
    schema="(Tensor a, Tensor c, Tensor w, Tensor v, int m, bool causal) -> (Tensor, Tensor)",
)
def additive(a: Tensor, c: Tensor, w: Tensor, v: Tensor, m: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention outputs of m queries from hidden rows in float32 and weights w (h, units), and the rows' log-sum-exp."""
    out, log_sum = _empty_outputs(a, v, m)
    launch(
        forward,
        tiles_for("additive.forward", v),
        query_grid(out),
        *(*_hidden(a, c), w, with_strides(v), out, log_sum, a.shape[1], m, v.shape[-2]),
        spec=_spec(a, v, causal),
    )
    return out, log_sum


@torch.library.custom_op(
    "rheoscope::additive_backward",
    mutates_args=(),
    schema="(Tensor g, Tensor a, Tensor c, Tensor w, Tensor v, Tensor out, Tensor total, bool causal) -> Tensor[]",
)
def additive_backward(
    g: Tensor, a: Tensor, c: Tensor, w: Tensor, v: Tensor, out: Tensor, total: Tensor, causal: bool
) -> list[Tensor]:
    """The gradients of a, c, w and v."""
    m, g, spec = out.shape[-2], g.contiguous(), _spec(a, v, causal)
    da, dc, dv, dw = empty_like(a, c, v, a)
    delta = (g.float() * out.float()).sum(-1)
    inputs, sizes = (*_hidden(a, c), w, with_strides(v), g, total, delta), (a.shape[1], m, v.shape[-2])
    key_tiles, query_tiles = tiles_for("additive.keys_backward", v), tiles_for("additive.queries_backward", v)
    launch(keys_backward, key_tiles, key_grid(v), *inputs, dc, dv, *sizes, spec=spec)
    launch(queries_backward, query_tiles, query_grid(out), *inputs, da, dw, *sizes, spec=spec)
    return [da, dc, dw[..., :m].sum((0, 3)), dv]


def _empty_outputs(a: Tensor, v: Tensor, m: int) -> tuple[Tensor, Tensor]:
    b, h = a.shape[:2]
    return v.new_empty(b, h, m, v.shape[-1]), a.new_empty(b, h, m)


@additive.register_fake
def _(a: Tensor, c: Tensor, w: Tensor, v: Tensor, m: int, causal: bool) -> tuple[Tensor, Tensor]:
    return _empty_outputs(a, v, m)


@additive_backward.register_fake
def _(g: Tensor, a: Tensor, c: Tensor, w: Tensor, v: Tensor, *unused: object) -> list[Tensor]:
    return empty_like(a, c, w, v)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.causal = inputs[5]


def _backward(ctx: Any, g: Tensor, grad_log_sum: Tensor) -> tuple[Tensor | None, ...]:
    return *torch.ops.rheoscope.additive_backward(g, *ctx.saved_tensors, ctx.causal), None, None


additive.register_autograd(_backward, setup_context=_save_for_backward)
