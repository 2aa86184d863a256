"""Softmax of additive scores s_ij = w . tanh(a_i + c_j) in one pass over tiles, the hidden units one after another.

No product of matrices makes these scores: every pair costs a tanh for each hidden unit, which is what the time goes into.
A program owns a tile of tokens of one side, one to a thread, and walks over tokens of the other side, so that every sum
over those stays within a thread: tiles are (walked, owned). Hidden rows a = q W and c = k U come as (b, h, units, tokens),
filled up to whole tiles, so that one unit of many tokens lies side by side.

Backward, with ds = p (dp - do.o):   da_i = w sum_j ds_ij (1 - t_ij^2),   dc_j the same over i,   dw = sum_ij ds_ij t_ij.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from rheoscope.attention.lower.kernels.tiles import (
    TileConfig,
    dot_precision,
    head_ptr,
    is_allowed,
    kernel,
    key_range,
    launch,
    load_rows,
    load_vector,
    query_range,
    store_rows,
    strides,
)

OWNED_TOKENS = 128
"""Tokens that a program owns: one to each of its threads."""
FORWARD_TILES = [TileConfig(OWNED_TOKENS, 32, 4, 2), TileConfig(OWNED_TOKENS, 16, 4, 1)]
KEYS_TILES = [TileConfig(32, OWNED_TOKENS, 4, 1), TileConfig(16, OWNED_TOKENS, 4, 1)]
QUERIES_TILES = [TileConfig(OWNED_TOKENS, 32, 4, 1), TileConfig(OWNED_TOKENS, 16, 4, 1)]
MASKED_SCORE = tl.constexpr(-1e30)


@triton.jit
@no_type_check
def tanh(x, FAST: tl.constexpr):
    if FAST:
        y = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        y = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))
    return y


@triton.jit
@no_type_check
def scores(
    owned_hidden, walked_hidden, so, sw, w, owned_index, walked_index,
    UNITS: tl.constexpr, FAST: tl.constexpr, N_OWNED: tl.constexpr, N_WALKED: tl.constexpr,
):  # fmt: skip
    """w . tanh(a_i + c_j) of a tile (walked, owned)."""
    s = tl.zeros([N_WALKED, N_OWNED], tl.float32)
    for unit in tl.range(0, UNITS, loop_unroll_factor=8):  # loads of eight units at a time
        owned_unit, walked_unit = (
            tl.load(owned_hidden + unit * so + owned_index),
            tl.load(walked_hidden + unit * sw + walked_index),
        )
        s += tl.load(w + unit) * tanh(owned_unit[None, :] + walked_unit[:, None], FAST)
    return s


@triton.jit
@no_type_check
def forward_pass(
    acc, row_max, exp_sum, a, c, am, cn, w, v, sv, i, low, high, M, N,
    CAUSAL: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        z = scores(a, c, am, cn, w, i, j, UNITS, FAST, BLOCK_M, BLOCK_N) * 1.4426950408889634
        if MASKED:
            z = tl.where(is_allowed(i[None, :], j[:, None], M, N, CAUSAL), z, MASKED_SCORE)
        new_max = tl.maximum(row_max, tl.max(z, 0))
        e, rescale = tl.exp2(z - new_max[None, :]), tl.exp2(row_max - new_max)
        values = load_rows(v, j, sv, N, E, MASKED)
        acc = tl.dot(tl.trans(e.to(values.dtype)), values, acc * rescale[:, None], input_precision=PRECISION)
        exp_sum = exp_sum * rescale + tl.sum(e, 0)
        row_max = new_max
    return acc, row_max, exp_sum


@kernel
@no_type_check
def forward(
    A, C, W, V, OUT, LOG_SUM, am, cn, vb0, vh0, vn, H, M, N,
    CAUSAL: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # the longest rows first
    i = start + tl.arange(0, BLOCK_M)
    a, c = A + head_index.to(tl.int64) * UNITS * am, C + head_index.to(tl.int64) * UNITS * cn
    w, v = W + head_index % H * UNITS, head_ptr(V, head_index, H, vb0, vh0)
    full_end, end = key_range(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    acc = tl.zeros([BLOCK_M, E], tl.float32)
    row_max, exp_sum = tl.full([BLOCK_M], MASKED_SCORE, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    acc, row_max, exp_sum = forward_pass(acc, row_max, exp_sum, a, c, am, cn, w, v, vn, i, 0, full_end, M, N,
                             CAUSAL, UNITS, FAST, PRECISION, E, BLOCK_M, BLOCK_N, False)  # fmt: skip
    acc, row_max, exp_sum = forward_pass(acc, row_max, exp_sum, a, c, am, cn, w, v, vn, i, full_end, end, M, N,
                             CAUSAL, UNITS, FAST, PRECISION, E, BLOCK_M, BLOCK_N, True)  # fmt: skip
    store_rows(OUT + head_index.to(tl.int64) * M * E, i, M, acc / exp_sum[:, None], E)
    tl.store(LOG_SUM + head_index.to(tl.int64) * M + i, row_max + tl.log2(exp_sum), mask=i < M)


@kernel
@no_type_check
def keys_backward(
    A, C, W, V, G, LOG_SUM, DELTA, DC, DV, am, cn, vb0, vh0, vn, H, M, N,
    CAUSAL: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head_index, start = tl.program_id(1), tl.program_id(0) * BLOCK_N
    j, units = start + tl.arange(0, BLOCK_N), tl.arange(0, UNITS)
    a, c = A + head_index.to(tl.int64) * UNITS * am, C + head_index.to(tl.int64) * UNITS * cn
    w, v = W + head_index % H * UNITS, load_rows(head_ptr(V, head_index, H, vb0, vh0), j, vn, N, E, True)
    log_sum, delta = LOG_SUM + head_index.to(tl.int64) * M, DELTA + head_index.to(tl.int64) * M
    dc, dv = tl.zeros([UNITS, BLOCK_N], tl.float32), tl.zeros([BLOCK_N, E], tl.float32)
    first, _full_start, _full_end = query_range(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    for low in range(first, M, BLOCK_M):
        i = low + tl.arange(0, BLOCK_M)
        g = load_rows(G + head_index.to(tl.int64) * M * E, i, E, M, E, True)
        z = scores(c, a, cn, am, w, j, i, UNITS, FAST, BLOCK_N, BLOCK_M) * 1.4426950408889634
        p = tl.exp2(z - load_vector(log_sum, i, M, True)[:, None])
        p = tl.where(is_allowed(i[:, None], j[None, :], M, N, CAUSAL), p, 0.0)
        dv = tl.dot(tl.trans(p.to(g.dtype)), g, dv, input_precision=PRECISION)
        dp = tl.trans(tl.dot(v, tl.trans(g), input_precision=PRECISION))
        ds = p * (dp - load_vector(delta, i, M, True)[:, None])
        for unit in range(UNITS):
            t = tanh(tl.load(c + unit * cn + j)[None, :] + tl.load(a + unit * am + i)[:, None], FAST)
            dc = tl.where((units == unit)[:, None], dc + tl.sum(ds - ds * t * t, 0)[None, :], dc)
    unit_offsets = head_index.to(tl.int64) * UNITS * cn + units[:, None] * cn + j[None, :]
    tl.store(DC + unit_offsets, dc * tl.load(w + units)[:, None])
    store_rows(DV + head_index.to(tl.int64) * N * E, j, N, dv, E)


@kernel
@no_type_check
def queries_backward(
    A, C, W, V, G, LOG_SUM, DELTA, DA, DW, am, cn, vb0, vh0, vn, H, M, N,
    CAUSAL: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """da, and the share of every query in dw."""
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    i, units = start + tl.arange(0, BLOCK_M), tl.arange(0, UNITS)
    a, c = A + head_index.to(tl.int64) * UNITS * am, C + head_index.to(tl.int64) * UNITS * cn
    w, v_ptr = W + head_index % H * UNITS, head_ptr(V, head_index, H, vb0, vh0)
    g = load_rows(G + head_index.to(tl.int64) * M * E, i, E, M, E, True)
    log_sum, delta = (
        load_vector(LOG_SUM + head_index.to(tl.int64) * M, i, M, True),
        load_vector(DELTA + head_index.to(tl.int64) * M, i, M, True),
    )
    da, dw = tl.zeros([UNITS, BLOCK_M], tl.float32), tl.zeros([UNITS, BLOCK_M], tl.float32)
    _full_end, end = key_range(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    for low in range(0, end, BLOCK_N):
        j = low + tl.arange(0, BLOCK_N)
        v = load_rows(v_ptr, j, vn, N, E, True)
        z = scores(a, c, am, cn, w, i, j, UNITS, FAST, BLOCK_M, BLOCK_N) * 1.4426950408889634
        p = tl.where(is_allowed(i[None, :], j[:, None], M, N, CAUSAL), tl.exp2(z - log_sum[None, :]), 0.0)
        dp = tl.trans(tl.dot(g, tl.trans(v), input_precision=PRECISION))
        ds = p * (dp - delta[None, :])
        for unit in range(UNITS):
            t = tanh(tl.load(a + unit * am + i)[None, :] + tl.load(c + unit * cn + j)[:, None], FAST)
            is_unit, ds_t = (units == unit)[:, None], ds * t
            da = tl.where(is_unit, da + tl.sum(ds - ds_t * t, 0)[None, :], da)
            dw = tl.where(is_unit, dw + tl.sum(ds_t, 0)[None, :], dw)
    unit_offsets = head_index.to(tl.int64) * UNITS * am + units[:, None] * am + i[None, :]
    tl.store(DA + unit_offsets, da * tl.load(w + units)[:, None])
    tl.store(DW + unit_offsets, dw)


def to_hidden_layout(x: Tensor) -> Tensor:
    """Hidden rows (b, h, tokens, units) as (b, h, units, tokens), filled up to whole tiles."""
    return pad(x.mT, (0, -x.shape[-2] % OWNED_TOKENS)).contiguous()


def _constants(a: Tensor, v: Tensor, causal: bool) -> dict[str, Any]:
    fast = v.is_cuda and v.dtype == torch.bfloat16  # exact to 2^-11, which float16 would see
    return {"CAUSAL": causal, "UNITS": a.shape[-2], "FAST": fast, "PRECISION": dot_precision(v), "E": v.shape[-1]}


@torch.library.custom_op(
    "rheoscope::additive",
    mutates_args=(),
    schema="(Tensor a, Tensor c, Tensor w, Tensor v, int m, bool causal) -> (Tensor, Tensor)",
)
def additive(a: Tensor, c: Tensor, w: Tensor, v: Tensor, m: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Outputs for m queries from `hidden` rows in float32 and weights w (h, units), and the logarithms of row sums."""
    b, h = a.shape[:2]
    out, log_sum = _empty_outputs(a, v, m)
    inputs = (a, c, w, v, out, log_sum, a.shape[-1], c.shape[-1], *strides(v), h, m, v.shape[-2])
    launch(
        forward,
        FORWARD_TILES,
        lambda config: (triton.cdiv(m, config.BLOCK_M), b * h),
        *inputs,
        **_constants(a, v, causal),
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
    (b, h), m, n, g = a.shape[:2], out.shape[-2], v.shape[-2], g.contiguous()
    da, dc, dv, dw = _empty_like(a, c, v, a)
    delta, constants = (g.float() * out.float()).sum(-1), _constants(a, v, causal)
    inputs, sizes = (a, c, w, v, g, total, delta), (a.shape[-1], c.shape[-1], *strides(v), h, m, n)
    launch(
        keys_backward,
        KEYS_TILES,
        lambda config: (triton.cdiv(n, config.BLOCK_N), b * h),
        *inputs,
        dc,
        dv,
        *sizes,
        **constants,
    )
    launch(
        queries_backward,
        QUERIES_TILES,
        lambda config: (triton.cdiv(m, config.BLOCK_M), b * h),
        *inputs,
        da,
        dw,
        *sizes,
        **constants,
    )
    return [da, dc, dw[..., :m].sum((0, 3)), dv]


def _empty_outputs(a: Tensor, v: Tensor, m: int) -> tuple[Tensor, Tensor]:
    b, h = a.shape[:2]
    return v.new_empty(b, h, m, v.shape[-1]), a.new_empty(b, h, m)


def _empty_like(*tensors: Tensor) -> list[Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors]


@additive.register_fake
def _(a: Tensor, c: Tensor, w: Tensor, v: Tensor, m: int, causal: bool) -> tuple[Tensor, Tensor]:
    return _empty_outputs(a, v, m)


@additive_backward.register_fake
def _(g: Tensor, a: Tensor, c: Tensor, w: Tensor, v: Tensor, *unused: object) -> list[Tensor]:
    return _empty_like(a, c, w, v)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.causal = inputs[5]


def _backward(ctx: Any, g: Tensor, grad_log_sum: Tensor) -> tuple[Tensor | None, ...]:
    return *torch.ops.rheoscope.additive_backward(g, *ctx.saved_tensors, ctx.causal), None, None


additive.register_autograd(_backward, setup_context=_save_for_backward)
