"""Softmax of additive scores s_ij = w . tanh(a_i + c_j) in one pass over tiles, the hidden units one after another.

No product of matrices makes these scores: every pair costs a tanh for each hidden unit, which is what the time goes into.
Hidden rows a = q W and c = k U come as (b, h, units, tokens), so that one unit of many tokens lies side by side.

Backward, with ds = p (dp - do.o):   da_i = w sum_j ds_ij (1 - t_ij^2),   dc_j the same over i,   dw = sum_ij ds_ij t_ij.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheoscope.attention.lower.kernels.tiles import (
    Tiles,
    head,
    kernel,
    keys_of,
    launch,
    line,
    permitted,
    precision,
    queries_of,
    store,
    strides,
    tile,
)

FORWARD = [Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 1)]
TO_KEYS = [Tiles(64, 32, 4, 1), Tiles(32, 32, 4, 1)]
TO_QUERIES = [Tiles(64, 32, 4, 1), Tiles(32, 32, 4, 1)]
FAR = tl.constexpr(-1e30)


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
    a, c, w, i, j, M, N,
    UNITS: tl.constexpr, FAST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """w . tanh(a_i + c_j) of a tile."""
    s = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for unit in range(UNITS):
        row, column = line(a + unit * M, i, M, True), line(c + unit * N, j, N, MASKED)
        s += tl.load(w + unit) * tanh(row[:, None] + column[None, :], FAST)
    return s


@triton.jit
@no_type_check
def average(
    acc, top, mass, a, c, w, v, sv, i, low, high, M, N,
    CAUSAL: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        z = scores(a, c, w, i, j, M, N, UNITS, FAST, BLOCK_M, BLOCK_N, MASKED) * 1.4426950408889634
        if MASKED:
            z = tl.where(permitted(i[:, None], j[None, :], M, N, CAUSAL), z, FAR)
        higher = tl.maximum(top, tl.max(z, 1))
        e, shrink = tl.exp2(z - higher[:, None]), tl.exp2(top - higher)
        values = tile(v, j, sv, N, E, MASKED)
        acc = tl.dot(e.to(values.dtype), values, acc * shrink[:, None], input_precision=PRECISION)
        mass = mass * shrink + tl.sum(e, 1)
        top = higher
    return acc, top, mass


@kernel
@no_type_check
def forward(
    A, C, W, V, OUT, TOTAL, vb0, vh0, vn, H, M, N,
    CAUSAL: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # the longest rows first
    i = start + tl.arange(0, BLOCK_M)
    a, c = A + at.to(tl.int64) * UNITS * M, C + at.to(tl.int64) * UNITS * N
    w, v = W + at % H * UNITS, head(V, at, H, vb0, vh0)
    whole, last = keys_of(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    acc = tl.zeros([BLOCK_M, E], tl.float32)
    top, mass = tl.full([BLOCK_M], FAR, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    acc, top, mass = average(acc, top, mass, a, c, w, v, vn, i, 0, whole, M, N,
                          CAUSAL, UNITS, FAST, PRECISION, E, BLOCK_M, BLOCK_N, False)  # fmt: skip
    acc, top, mass = average(acc, top, mass, a, c, w, v, vn, i, whole, last, M, N,
                          CAUSAL, UNITS, FAST, PRECISION, E, BLOCK_M, BLOCK_N, True)  # fmt: skip
    store(OUT + at.to(tl.int64) * M * E, i, M, acc / mass[:, None], E)
    tl.store(TOTAL + at.to(tl.int64) * M + i, top + tl.log2(mass), mask=i < M)


@triton.jit
@no_type_check
def score_gradients(
    a, c, w, v, g, total, delta, i, j, M, N,
    CAUSAL: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """p and ds of a tile, from its values and output gradients."""
    z = scores(a, c, w, i, j, M, N, UNITS, FAST, BLOCK_M, BLOCK_N, True) * 1.4426950408889634
    p = tl.exp2(z - line(total, i, M, True)[:, None])
    p = tl.where(permitted(i[:, None], j[None, :], M, N, CAUSAL), p, 0.0)
    dp = tl.dot(g, tl.trans(v), input_precision=PRECISION)
    return p, p * (dp - line(delta, i, M, True)[:, None])


@kernel
@no_type_check
def to_keys(
    A, C, W, V, G, TOTAL, DELTA, DC, DV, vb0, vh0, vn, H, M, N,
    CAUSAL: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    at, start = tl.program_id(1), tl.program_id(0) * BLOCK_N
    j, units = start + tl.arange(0, BLOCK_N), tl.arange(0, UNITS)
    a, c = A + at.to(tl.int64) * UNITS * M, C + at.to(tl.int64) * UNITS * N
    w, v = W + at % H * UNITS, tile(head(V, at, H, vb0, vh0), j, vn, N, E, True)
    total, delta = TOTAL + at.to(tl.int64) * M, DELTA + at.to(tl.int64) * M
    dc, dv = tl.zeros([UNITS, BLOCK_N], tl.float32), tl.zeros([BLOCK_N, E], tl.float32)
    first, _whole, _end = queries_of(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    for low in range(first, M, BLOCK_M):
        i = low + tl.arange(0, BLOCK_M)
        g = tile(G + at.to(tl.int64) * M * E, i, E, M, E, True)
        p, ds = score_gradients(a, c, w, v, g, total, delta, i, j, M, N,
                                CAUSAL, UNITS, FAST, PRECISION, E, BLOCK_M, BLOCK_N)  # fmt: skip
        dv = tl.dot(tl.trans(p.to(g.dtype)), g, dv, input_precision=PRECISION)
        for unit in range(UNITS):
            row, column = line(a + unit * M, i, M, True), line(c + unit * N, j, N, True)
            t = tanh(row[:, None] + column[None, :], FAST)
            dc += tl.where((units == unit)[:, None], tl.sum(ds - ds * t * t, 0)[None, :], 0.0)
    at_units = at.to(tl.int64) * UNITS * N + units[:, None] * N + j[None, :]
    tl.store(DC + at_units, dc * tl.load(w + units)[:, None], mask=(j < N)[None, :])
    store(DV + at.to(tl.int64) * N * E, j, N, dv, E)


@kernel
@no_type_check
def to_queries(
    A, C, W, V, G, TOTAL, DELTA, DA, DW, vb0, vh0, vn, H, M, N,
    CAUSAL: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """da, and the share of every query in dw."""
    at = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    i, units = start + tl.arange(0, BLOCK_M), tl.arange(0, UNITS)
    a, c = A + at.to(tl.int64) * UNITS * M, C + at.to(tl.int64) * UNITS * N
    w, values = W + at % H * UNITS, head(V, at, H, vb0, vh0)
    g = tile(G + at.to(tl.int64) * M * E, i, E, M, E, True)
    total, delta = TOTAL + at.to(tl.int64) * M, DELTA + at.to(tl.int64) * M
    da, dw = tl.zeros([BLOCK_M, UNITS], tl.float32), tl.zeros([BLOCK_M, UNITS], tl.float32)
    _whole, last = keys_of(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    for low in range(0, last, BLOCK_N):
        j = low + tl.arange(0, BLOCK_N)
        v = tile(values, j, vn, N, E, True)
        _p, ds = score_gradients(a, c, w, v, g, total, delta, i, j, M, N,
                                CAUSAL, UNITS, FAST, PRECISION, E, BLOCK_M, BLOCK_N)  # fmt: skip
        for unit in range(UNITS):
            row, column = line(a + unit * M, i, M, True), line(c + unit * N, j, N, True)
            t = tanh(row[:, None] + column[None, :], FAST)
            mine, by_t = (units == unit)[None, :], ds * t
            da += tl.where(mine, tl.sum(ds - by_t * t, 1)[:, None], 0.0)
            dw += tl.where(mine, tl.sum(by_t, 1)[:, None], 0.0)
    at_units = at.to(tl.int64) * UNITS * M + units[None, :] * M + i[:, None]
    tl.store(DA + at_units, da * tl.load(w + units)[None, :], mask=(i < M)[:, None])
    tl.store(DW + at_units, dw, mask=(i < M)[:, None])


def _kind(a: Tensor, v: Tensor, causal: bool) -> dict[str, Any]:
    fast = v.is_cuda and v.dtype != torch.float32
    return {"CAUSAL": causal, "UNITS": a.shape[-2], "FAST": fast, "PRECISION": precision(v), "E": v.shape[-1]}


@torch.library.custom_op(
    "rheoscope::additive",
    mutates_args=(),
    schema="(Tensor a, Tensor c, Tensor w, Tensor v, bool causal) -> (Tensor, Tensor)",
)
def additive(a: Tensor, c: Tensor, w: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Outputs from hidden rows (b, h, units, tokens) in float32 and weights w (h, units), and the logarithms of row sums."""
    b, h, _, m = a.shape
    out, total = _outputs(a, v)
    sizes = (*strides(v), h, m, v.shape[-2])
    given = (a, c, w, v, out, total, *sizes)
    launch(forward, FORWARD, lambda t: (triton.cdiv(m, t.BLOCK_M), b * h), *given, **_kind(a, v, causal))
    return out, total


@torch.library.custom_op(
    "rheoscope::additive_backward",
    mutates_args=(),
    schema="(Tensor g, Tensor a, Tensor c, Tensor w, Tensor v, Tensor out, Tensor total, bool causal) -> Tensor[]",
)
def additive_backward(
    g: Tensor, a: Tensor, c: Tensor, w: Tensor, v: Tensor, out: Tensor, total: Tensor, causal: bool
) -> list[Tensor]:
    """The gradients of a, c, w and v."""
    (b, h, _, m), n, g = a.shape, v.shape[-2], g.contiguous()
    da, dc, dv, dw = _like(a, c, v, a)
    delta, sizes, kind = (g.float() * out.float()).sum(-1), (*strides(v), h, m, n), _kind(a, v, causal)
    given = (a, c, w, v, g, total, delta)
    launch(to_keys, TO_KEYS, lambda t: (triton.cdiv(n, t.BLOCK_N), b * h), *given, dc, dv, *sizes, **kind)
    launch(to_queries, TO_QUERIES, lambda t: (triton.cdiv(m, t.BLOCK_M), b * h), *given, da, dw, *sizes, **kind)
    return [da, dc, dw.sum((0, 3)), dv]


def _outputs(a: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    b, h, _, m = a.shape
    return v.new_empty(b, h, m, v.shape[-1]), a.new_empty(b, h, m)


def _like(*tensors: Tensor) -> list[Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors]


@additive.register_fake
def _(a: Tensor, c: Tensor, w: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    return _outputs(a, v)


@additive_backward.register_fake
def _(g: Tensor, a: Tensor, c: Tensor, w: Tensor, v: Tensor, *rest: object) -> list[Tensor]:
    return _like(a, c, w, v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.causal = inputs[4]


def _pull(ctx: Any, g: Tensor, of_total: Tensor) -> tuple[Tensor | None, ...]:
    return *torch.ops.rheoscope.additive_backward(g, *ctx.saved_tensors, ctx.causal), None


additive.register_autograd(_pull, setup_context=_keep)
