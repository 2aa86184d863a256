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

OWNED = 128
"""Tokens that a program owns: one to each of its threads."""
FORWARD = [Tiles(OWNED, 32, 4, 2), Tiles(OWNED, 16, 4, 1)]
TO_KEYS = [Tiles(32, OWNED, 4, 1), Tiles(16, OWNED, 4, 1)]
TO_QUERIES = [Tiles(OWNED, 32, 4, 1), Tiles(OWNED, 16, 4, 1)]
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
    owned, walked, so, sw, w, at_owned, at_walked,
    UNITS: tl.constexpr, FAST: tl.constexpr, OWN: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """w . tanh(a_i + c_j) of a tile (walked, owned)."""
    s = tl.zeros([WALK, OWN], tl.float32)
    for unit in tl.range(0, UNITS, loop_unroll_factor=8):  # loads of eight units at a time
        mine, other = tl.load(owned + unit * so + at_owned), tl.load(walked + unit * sw + at_walked)
        s += tl.load(w + unit) * tanh(mine[None, :] + other[:, None], FAST)
    return s


@triton.jit
@no_type_check
def average(
    acc, top, mass, a, c, am, cn, w, v, sv, i, low, high, M, N,
    CAUSAL: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        z = scores(a, c, am, cn, w, i, j, UNITS, FAST, BLOCK_M, BLOCK_N) * 1.4426950408889634
        if MASKED:
            z = tl.where(permitted(i[None, :], j[:, None], M, N, CAUSAL), z, FAR)
        higher = tl.maximum(top, tl.max(z, 0))
        e, shrink = tl.exp2(z - higher[None, :]), tl.exp2(top - higher)
        values = tile(v, j, sv, N, E, MASKED)
        acc = tl.dot(tl.trans(e.to(values.dtype)), values, acc * shrink[:, None], input_precision=PRECISION)
        mass = mass * shrink + tl.sum(e, 0)
        top = higher
    return acc, top, mass


@kernel
@no_type_check
def forward(
    A, C, W, V, OUT, TOTAL, am, cn, vb0, vh0, vn, H, M, N,
    CAUSAL: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # the longest rows first
    i = start + tl.arange(0, BLOCK_M)
    a, c = A + at.to(tl.int64) * UNITS * am, C + at.to(tl.int64) * UNITS * cn
    w, v = W + at % H * UNITS, head(V, at, H, vb0, vh0)
    whole, last = keys_of(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    acc = tl.zeros([BLOCK_M, E], tl.float32)
    top, mass = tl.full([BLOCK_M], FAR, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    acc, top, mass = average(acc, top, mass, a, c, am, cn, w, v, vn, i, 0, whole, M, N,
                             CAUSAL, UNITS, FAST, PRECISION, E, BLOCK_M, BLOCK_N, False)  # fmt: skip
    acc, top, mass = average(acc, top, mass, a, c, am, cn, w, v, vn, i, whole, last, M, N,
                             CAUSAL, UNITS, FAST, PRECISION, E, BLOCK_M, BLOCK_N, True)  # fmt: skip
    store(OUT + at.to(tl.int64) * M * E, i, M, acc / mass[:, None], E)
    tl.store(TOTAL + at.to(tl.int64) * M + i, top + tl.log2(mass), mask=i < M)


@kernel
@no_type_check
def to_keys(
    A, C, W, V, G, TOTAL, DELTA, DC, DV, am, cn, vb0, vh0, vn, H, M, N,
    CAUSAL: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    at, start = tl.program_id(1), tl.program_id(0) * BLOCK_N
    j, units = start + tl.arange(0, BLOCK_N), tl.arange(0, UNITS)
    a, c = A + at.to(tl.int64) * UNITS * am, C + at.to(tl.int64) * UNITS * cn
    w, v = W + at % H * UNITS, tile(head(V, at, H, vb0, vh0), j, vn, N, E, True)
    total, delta = TOTAL + at.to(tl.int64) * M, DELTA + at.to(tl.int64) * M
    dc, dv = tl.zeros([UNITS, BLOCK_N], tl.float32), tl.zeros([BLOCK_N, E], tl.float32)
    first, _whole, _end = queries_of(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    for low in range(first, M, BLOCK_M):
        i = low + tl.arange(0, BLOCK_M)
        g = tile(G + at.to(tl.int64) * M * E, i, E, M, E, True)
        z = scores(c, a, cn, am, w, j, i, UNITS, FAST, BLOCK_N, BLOCK_M) * 1.4426950408889634
        p = tl.exp2(z - line(total, i, M, True)[:, None])
        p = tl.where(permitted(i[:, None], j[None, :], M, N, CAUSAL), p, 0.0)
        dv = tl.dot(tl.trans(p.to(g.dtype)), g, dv, input_precision=PRECISION)
        dp = tl.trans(tl.dot(v, tl.trans(g), input_precision=PRECISION))
        ds = p * (dp - line(delta, i, M, True)[:, None])
        for unit in range(UNITS):
            t = tanh(tl.load(c + unit * cn + j)[None, :] + tl.load(a + unit * am + i)[:, None], FAST)
            dc = tl.where((units == unit)[:, None], dc + tl.sum(ds - ds * t * t, 0)[None, :], dc)
    at_units = at.to(tl.int64) * UNITS * cn + units[:, None] * cn + j[None, :]
    tl.store(DC + at_units, dc * tl.load(w + units)[:, None])
    store(DV + at.to(tl.int64) * N * E, j, N, dv, E)


@kernel
@no_type_check
def to_queries(
    A, C, W, V, G, TOTAL, DELTA, DA, DW, am, cn, vb0, vh0, vn, H, M, N,
    CAUSAL: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """da, and the share of every query in dw."""
    at = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    i, units = start + tl.arange(0, BLOCK_M), tl.arange(0, UNITS)
    a, c = A + at.to(tl.int64) * UNITS * am, C + at.to(tl.int64) * UNITS * cn
    w, values = W + at % H * UNITS, head(V, at, H, vb0, vh0)
    g = tile(G + at.to(tl.int64) * M * E, i, E, M, E, True)
    total, delta = line(TOTAL + at.to(tl.int64) * M, i, M, True), line(DELTA + at.to(tl.int64) * M, i, M, True)
    da, dw = tl.zeros([UNITS, BLOCK_M], tl.float32), tl.zeros([UNITS, BLOCK_M], tl.float32)
    _whole, last = keys_of(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    for low in range(0, last, BLOCK_N):
        j = low + tl.arange(0, BLOCK_N)
        v = tile(values, j, vn, N, E, True)
        z = scores(a, c, am, cn, w, i, j, UNITS, FAST, BLOCK_M, BLOCK_N) * 1.4426950408889634
        p = tl.where(permitted(i[None, :], j[:, None], M, N, CAUSAL), tl.exp2(z - total[None, :]), 0.0)
        dp = tl.trans(tl.dot(g, tl.trans(v), input_precision=PRECISION))
        ds = p * (dp - delta[None, :])
        for unit in range(UNITS):
            t = tanh(tl.load(a + unit * am + i)[None, :] + tl.load(c + unit * cn + j)[:, None], FAST)
            mine, by_t = (units == unit)[:, None], ds * t
            da = tl.where(mine, da + tl.sum(ds - by_t * t, 0)[None, :], da)
            dw = tl.where(mine, dw + tl.sum(by_t, 0)[None, :], dw)
    at_units = at.to(tl.int64) * UNITS * am + units[:, None] * am + i[None, :]
    tl.store(DA + at_units, da * tl.load(w + units)[:, None])
    tl.store(DW + at_units, dw)


def hidden(x: Tensor) -> Tensor:
    """Hidden rows (b, h, tokens, units) as (b, h, units, tokens), filled up to whole tiles."""
    return pad(x.mT, (0, -x.shape[-2] % OWNED)).contiguous()


def _kind(a: Tensor, v: Tensor, causal: bool) -> dict[str, Any]:
    fast = v.is_cuda and v.dtype == torch.bfloat16  # exact to 2^-11, which float16 would see
    return {"CAUSAL": causal, "UNITS": a.shape[-2], "FAST": fast, "PRECISION": precision(v), "E": v.shape[-1]}


@torch.library.custom_op(
    "rheoscope::additive",
    mutates_args=(),
    schema="(Tensor a, Tensor c, Tensor w, Tensor v, int m, bool causal) -> (Tensor, Tensor)",
)
def additive(a: Tensor, c: Tensor, w: Tensor, v: Tensor, m: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Outputs for m queries from `hidden` rows in float32 and weights w (h, units), and the logarithms of row sums."""
    b, h = a.shape[:2]
    out, total = _outputs(a, v, m)
    given = (a, c, w, v, out, total, a.shape[-1], c.shape[-1], *strides(v), h, m, v.shape[-2])
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
    (b, h), m, n, g = a.shape[:2], out.shape[-2], v.shape[-2], g.contiguous()
    da, dc, dv, dw = _like(a, c, v, a)
    delta, kind = (g.float() * out.float()).sum(-1), _kind(a, v, causal)
    given, sizes = (a, c, w, v, g, total, delta), (a.shape[-1], c.shape[-1], *strides(v), h, m, n)
    launch(to_keys, TO_KEYS, lambda t: (triton.cdiv(n, t.BLOCK_N), b * h), *given, dc, dv, *sizes, **kind)
    launch(to_queries, TO_QUERIES, lambda t: (triton.cdiv(m, t.BLOCK_M), b * h), *given, da, dw, *sizes, **kind)
    return [da, dc, dw[..., :m].sum((0, 3)), dv]


def _outputs(a: Tensor, v: Tensor, m: int) -> tuple[Tensor, Tensor]:
    b, h = a.shape[:2]
    return v.new_empty(b, h, m, v.shape[-1]), a.new_empty(b, h, m)


def _like(*tensors: Tensor) -> list[Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors]


@additive.register_fake
def _(a: Tensor, c: Tensor, w: Tensor, v: Tensor, m: int, causal: bool) -> tuple[Tensor, Tensor]:
    return _outputs(a, v, m)


@additive_backward.register_fake
def _(g: Tensor, a: Tensor, c: Tensor, w: Tensor, v: Tensor, *rest: object) -> list[Tensor]:
    return _like(a, c, w, v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.causal = inputs[5]


def _pull(ctx: Any, g: Tensor, of_total: Tensor) -> tuple[Tensor | None, ...]:
    return *torch.ops.rheoscope.additive_backward(g, *ctx.saved_tensors, ctx.causal), None, None


additive.register_autograd(_pull, setup_context=_keep)
