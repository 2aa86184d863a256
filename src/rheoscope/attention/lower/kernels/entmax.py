"""alpha-entmax, 1 < alpha <= 2, without sorting: the threshold of every row by Newton's method, a pass over keys a step.

    u_j = [x_j - tau]_+,   x = (alpha - 1) s,   p = u^r,   r = 1/(alpha - 1),   tau with sum p = 1

The norm |u|_r is convex and falls with tau, so from a tau that is too low Newton's steps rise and never pass the root:

    tau <- tau + (|u|_r - 1) |u|_r^{r-1} / sum u^{r-1}

A first pass keeps, of every lane of a tile, the largest score. Those are some of the row's scores, so their own
threshold, found without a further pass, is below the row's, and near it: two or three steps over all keys remain.

Backward, with g = p^{2 - alpha} = u^{r-1}:   ds = g (dp - <g, dp>/<g, 1>).
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
    kind_of,
    launch,
    line,
    permitted,
    precision,
    queries_of,
    store,
    strides,
    tile,
    turned,
)

FORWARD = {
    "half": [Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 2)],
    "wide": [Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 2)],
    "single": [Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 1)],
}
"""Tiles by the kind of rows, the fastest first (measured on an H200)."""
TO_KEYS = {
    "half": [Tiles(64, 64, 4, 3), Tiles(32, 64, 4, 2)],
    "wide": [Tiles(32, 64, 4, 3), Tiles(32, 32, 4, 2)],
    "single": [Tiles(32, 64, 4, 1), Tiles(16, 32, 4, 1)],
}
TO_QUERIES = {
    "half": [Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 2)],
    "wide": [Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 2)],
    "single": [Tiles(64, 32, 4, 1), Tiles(32, 16, 4, 1)],
}
INSIDE = tl.constexpr(8)
"""Newton's steps on the largest scores of the lanes."""
MOST = tl.constexpr(24)
"""Newton's steps over all keys at most; three are usual."""
FAR = tl.constexpr(-1e30)
"""Below every score."""


@triton.jit
@no_type_check
def power(u, R: tl.constexpr):
    """u^R of u >= 0, 0 where u is 0."""
    if R == 0.0:
        u = (u > 0).to(tl.float32)
    elif R == 2.0:
        u = u * u
    elif R != 1.0:
        u = tl.where(u > 0, tl.exp2(R * tl.log2(tl.maximum(u, 1e-37))), 0.0)
    return u


@triton.jit
@no_type_check
def step(total, below, R: tl.constexpr):
    """How far Newton's method moves tau, from sum u^r and sum u^{r-1}."""
    if R == 1.0:
        rest = tl.full(total.shape, 1.0, tl.float32)
    elif R == 2.0:
        rest = tl.sqrt(total)
    else:
        rest = power(total, 1.0 - 1.0 / R)
    return tl.where(below > 0, (total - rest) / tl.where(below > 0, below, 1.0), 0.0)


@triton.jit
@no_type_check
def points(
    q, k, kb, sk, i, j, M, N, a, per_bias,
    CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """x = (alpha - 1) s of queries i and keys j; far below where a pair is not permitted."""
    x = tl.dot(q, turned(k, j, sk, N, D, MASKED), input_precision=PRECISION) * a
    if BIAS:
        x += line(kb, j, N, MASKED)[None, :] * per_bias
    if MASKED:
        x = tl.where(permitted(i[:, None], j[None, :], M, N, CAUSAL), x, FAR)
    return x


@triton.jit
@no_type_check
def largest(
    top, q, k, kb, sk, i, low, high, M, N, a, per_bias,
    CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        top = tl.maximum(top, points(q, k, kb, sk, i, j, M, N, a, per_bias, CAUSAL, BIAS, PRECISION, D, MASKED))
    return top


@triton.jit
@no_type_check
def sums(
    total, below, tau, q, k, kb, sk, i, low, high, M, N, a, per_bias,
    R: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """sum u^r and sum u^{r-1} over keys low..high."""
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        x = points(q, k, kb, sk, i, j, M, N, a, per_bias, CAUSAL, BIAS, PRECISION, D, MASKED)
        u = tl.maximum(x - tau[:, None], 0.0)
        less = power(u, R - 1.0)
        total += tl.sum(less * u, 1)
        below += tl.sum(less, 1)
    return total, below


@triton.jit
@no_type_check
def average(
    acc, total, tau, q, k, v, kb, sk, sv, i, low, high, M, N, a, per_bias,
    R: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """acc + sum_j p_ij v_j, and total + sum_j p_ij."""
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        x = points(q, k, kb, sk, i, j, M, N, a, per_bias, CAUSAL, BIAS, PRECISION, D, MASKED)
        p = power(tl.maximum(x - tau[:, None], 0.0), R)
        values = tile(v, j, sv, N, E, MASKED)
        acc = tl.dot(p.to(values.dtype), values, acc, input_precision=PRECISION)
        total += tl.sum(p, 1)
    return acc, total


@kernel
@no_type_check
def forward(
    Q, K, V, KB, OUT, TAU, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, a, per_bias, near,
    R: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # the longest rows first
    i = start + tl.arange(0, BLOCK_M)
    q = tile(head(Q, at, H, qb0, qh0), i, qm, M, D, True)
    k, v = head(K, at, H, kb0, kh0), head(V, at, H, vb0, vh0)
    kb = KB
    if BIAS:
        kb = KB + at.to(tl.int64) * N
    whole, last = keys_of(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    top = tl.full([BLOCK_M, BLOCK_N], FAR, tl.float32)
    top = largest(top, q, k, kb, kn, i, 0, whole, M, N, a, per_bias, CAUSAL, BIAS, PRECISION, D, BLOCK_N, False)
    top = largest(top, q, k, kb, kn, i, whole, last, M, N, a, per_bias, CAUSAL, BIAS, PRECISION, D, BLOCK_N, True)
    tau = tl.max(top, 1) - 1.0
    for _ in range(INSIDE):
        u = tl.maximum(top - tau[:, None], 0.0)
        less = power(u, R - 1.0)
        tau += tl.maximum(step(tl.sum(less * u, 1), tl.sum(less, 1), R), 0.0)
    steps, off = 0, near + 1.0
    while (steps < MOST) & (off > near):
        total, below = tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M], tl.float32)
        total, below = sums(total, below, tau, q, k, kb, kn, i, 0, whole, M, N, a, per_bias,
                            R, CAUSAL, BIAS, PRECISION, D, BLOCK_N, False)  # fmt: skip
        total, below = sums(total, below, tau, q, k, kb, kn, i, whole, last, M, N, a, per_bias,
                            R, CAUSAL, BIAS, PRECISION, D, BLOCK_N, True)  # fmt: skip
        tau += step(total, below, R)
        off = tl.max(tl.where(i < M, tl.abs(total - 1.0), 0.0), 0)
        steps += 1
    acc, total = tl.zeros([BLOCK_M, E], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    acc, total = average(acc, total, tau, q, k, v, kb, kn, vn, i, 0, whole, M, N, a, per_bias,
                         R, CAUSAL, BIAS, PRECISION, D, E, BLOCK_N, False)  # fmt: skip
    acc, total = average(acc, total, tau, q, k, v, kb, kn, vn, i, whole, last, M, N, a, per_bias,
                         R, CAUSAL, BIAS, PRECISION, D, E, BLOCK_N, True)  # fmt: skip
    store(OUT + at.to(tl.int64) * M * E, i, M, acc / tl.where(total > 0, total, 1.0)[:, None], E)
    tl.store(TAU + at.to(tl.int64) * M + i, tau, mask=i < M)


@triton.jit
@no_type_check
def keys_pass(
    dk, dv, db, k, v, kb, q, g, tau, mean, sq, j, low, high, M, N, a, per_bias,
    R: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BLOCK_M: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """dk, dv and the key bias's gradient, summed over queries low..high."""
    for start in range(low, high, BLOCK_M):
        i = start + tl.arange(0, BLOCK_M)
        queries = tile(q, i, sq, M, D, MASKED)
        x = tl.dot(k, tl.trans(queries), input_precision=PRECISION) * a
        if BIAS:
            x += kb[:, None] * per_bias
        u = tl.maximum(x - line(tau, i, M, MASKED)[None, :], 0.0)
        if MASKED:
            u = tl.where(permitted(i[None, :], j[:, None], M, N, CAUSAL), u, 0.0)
        less = power(u, R - 1.0)
        gradient = tile(g, i, E, M, E, MASKED)
        dv = tl.dot((less * u).to(gradient.dtype), gradient, dv, input_precision=PRECISION)
        dp = tl.dot(v, tl.trans(gradient), input_precision=PRECISION)
        ds = less * (dp - line(mean, i, M, MASKED)[None, :])
        dk = tl.dot(ds.to(queries.dtype), queries, dk, input_precision=PRECISION)
        if BIAS:
            db += tl.sum(ds, 1)
    return dk, dv, db


@kernel
@no_type_check
def to_keys(
    Q, K, V, KB, G, TAU, MEAN, DK, DV, DB, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, scale, a, per_bias,
    R: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(1)
    start = tl.program_id(0) * BLOCK_N
    j = start + tl.arange(0, BLOCK_N)
    k = tile(head(K, at, H, kb0, kh0), j, kn, N, D, True)
    v = tile(head(V, at, H, vb0, vh0), j, vn, N, E, True)
    q, g = head(Q, at, H, qb0, qh0), G + at.to(tl.int64) * M * E
    tau, mean = TAU + at.to(tl.int64) * M, MEAN + at.to(tl.int64) * M
    kb = j.to(tl.float32)
    if BIAS:
        kb = line(KB + at.to(tl.int64) * N, j, N, True)
    first, whole, end = queries_of(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    dk, dv = tl.zeros([BLOCK_N, D], tl.float32), tl.zeros([BLOCK_N, E], tl.float32)
    db = tl.zeros([BLOCK_N], tl.float32)
    dk, dv, db = keys_pass(dk, dv, db, k, v, kb, q, g, tau, mean, qm, j, first, tl.minimum(whole, M), M, N, a,
                           per_bias, R, CAUSAL, BIAS, PRECISION, D, E, BLOCK_M, True)  # fmt: skip
    dk, dv, db = keys_pass(dk, dv, db, k, v, kb, q, g, tau, mean, qm, j, whole, end, M, N, a,
                           per_bias, R, CAUSAL, BIAS, PRECISION, D, E, BLOCK_M, False)  # fmt: skip
    dk, dv, db = keys_pass(dk, dv, db, k, v, kb, q, g, tau, mean, qm, j, end, M, M, N, a,
                           per_bias, R, CAUSAL, BIAS, PRECISION, D, E, BLOCK_M, True)  # fmt: skip
    store(DK + at.to(tl.int64) * N * D, j, N, dk * scale, D)
    store(DV + at.to(tl.int64) * N * E, j, N, dv, E)
    if BIAS:
        tl.store(DB + at.to(tl.int64) * N + j, db, mask=j < N)


@triton.jit
@no_type_check
def queries_pass(
    with_d, bare, sum_d, sum_g, tau, centre, q, g, k, v, kb, sk, sv, i, low, high, M, N, a, per_bias,
    R: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """sum_j g d k_j, sum_j g k_j, sum_j g d and sum_j g, with d = dp - centre, over keys low..high."""
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        keys = tile(k, j, sk, N, D, MASKED)
        x = tl.dot(q, tl.trans(keys), input_precision=PRECISION) * a
        if BIAS:
            x += line(kb, j, N, MASKED)[None, :] * per_bias
        u = tl.maximum(x - tau[:, None], 0.0)
        if MASKED:
            u = tl.where(permitted(i[:, None], j[None, :], M, N, CAUSAL), u, 0.0)
        less = power(u, R - 1.0)
        d = less * (tl.dot(g, turned(v, j, sv, N, E, MASKED), input_precision=PRECISION) - centre[:, None])
        with_d = tl.dot(d.to(keys.dtype), keys, with_d, input_precision=PRECISION)
        bare = tl.dot(less.to(keys.dtype), keys, bare, input_precision=PRECISION)
        sum_d += tl.sum(d, 1)
        sum_g += tl.sum(less, 1)
    return with_d, bare, sum_d, sum_g


@kernel
@no_type_check
def to_queries(
    Q, K, V, KB, OUT, G, TAU, MEAN, DQ, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, scale, a, per_bias,
    R: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dq, and <g, dp>/<g, 1> of every row, which `to_keys` needs."""
    at = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    i = start + tl.arange(0, BLOCK_M)
    q = tile(head(Q, at, H, qb0, qh0), i, qm, M, D, True)
    g = tile(G + at.to(tl.int64) * M * E, i, E, M, E, True)
    out = tile(OUT + at.to(tl.int64) * M * E, i, E, M, E, True)
    centre = tl.sum(out.to(tl.float32) * g.to(tl.float32), 1)  # near the mean, so that sums of d stay small
    k, v = head(K, at, H, kb0, kh0), head(V, at, H, vb0, vh0)
    tau, kb = line(TAU + at.to(tl.int64) * M, i, M, True), KB
    if BIAS:
        kb = KB + at.to(tl.int64) * N
    whole, last = keys_of(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    with_d, bare = tl.zeros([BLOCK_M, D], tl.float32), tl.zeros([BLOCK_M, D], tl.float32)
    sum_d, sum_g = tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    with_d, bare, sum_d, sum_g = queries_pass(
        with_d, bare, sum_d, sum_g, tau, centre, q, g, k, v, kb, kn, vn, i, 0, whole, M, N, a, per_bias,
        R, CAUSAL, BIAS, PRECISION, D, E, BLOCK_N, False)  # fmt: skip
    with_d, bare, sum_d, sum_g = queries_pass(
        with_d, bare, sum_d, sum_g, tau, centre, q, g, k, v, kb, kn, vn, i, whole, last, M, N, a, per_bias,
        R, CAUSAL, BIAS, PRECISION, D, E, BLOCK_N, True)  # fmt: skip
    mean = sum_d / tl.where(sum_g > 0, sum_g, 1.0)
    store(DQ + at.to(tl.int64) * M * D, i, M, (with_d - bare * mean[:, None]) * scale, D)
    tl.store(MEAN + at.to(tl.int64) * M + i, mean + centre, mask=i < M)


def _constants(q: Tensor, v: Tensor, key_bias: Tensor | None, alpha: float, causal: bool) -> dict[str, Any]:
    return {
        "R": 1.0 / (alpha - 1.0),
        "CAUSAL": causal,
        "BIAS": key_bias is not None,
        "PRECISION": precision(q),
        "D": q.shape[-1],
        "E": v.shape[-1],
    }


@torch.library.custom_op(
    "rheoscope::entmax",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? key_bias, float scale, float alpha, bool causal) -> (Tensor, Tensor)",
)
def entmax(
    q: Tensor, k: Tensor, v: Tensor, key_bias: Tensor | None, scale: float, alpha: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """Outputs, and the threshold of every row."""
    (b, h, m), n = q.shape[:3], k.shape[-2]
    out, tau = _outputs(q, v)
    launch(
        forward,
        FORWARD[kind_of(q, v)],
        lambda t: (triton.cdiv(m, t.BLOCK_M), b * h),
        *(q, k, v, key_bias, out, tau, *strides(q, k, v), h, m, n, scale * (alpha - 1), alpha - 1),
        1e-4 if q.dtype == torch.float32 else 3e-3,  # a further step squares it
        **_constants(q, v, key_bias, alpha, causal),
    )
    return out, tau


@torch.library.custom_op(
    "rheoscope::entmax_backward",
    mutates_args=(),
    schema="(Tensor g, Tensor q, Tensor k, Tensor v, Tensor? key_bias, Tensor out, Tensor tau, float scale, "
    "float alpha, bool causal) -> Tensor[]",
)
def entmax_backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_bias: Tensor | None,
    out: Tensor,
    tau: Tensor,
    scale: float,
    alpha: float,
    causal: bool,
) -> list[Tensor]:
    """The gradients of q, k, v and of the key bias."""
    (b, h, m), n, kind, g = q.shape[:3], k.shape[-2], kind_of(q, v), g.contiguous()
    dq, dk, dv, db = _gradients(q, k, v)
    mean, shapes = torch.empty_like(tau), (*strides(q, k, v), h, m, n, scale, scale * (alpha - 1), alpha - 1)
    constants = _constants(q, v, key_bias, alpha, causal)
    launch(
        to_queries,
        TO_QUERIES[kind],
        lambda t: (triton.cdiv(m, t.BLOCK_M), b * h),
        *(q, k, v, key_bias, out, g, tau, mean, dq, *shapes),
        **constants,
    )
    launch(
        to_keys,
        TO_KEYS[kind],
        lambda t: (triton.cdiv(n, t.BLOCK_N), b * h),
        *(q, k, v, key_bias, g, tau, mean, dk, dv, db, *shapes),
        **constants,
    )
    return [dq, dk, dv, db]


def _outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return v.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


def _gradients(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    rows = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)]
    return [*rows, torch.empty(k.shape[:3], dtype=torch.float32, device=k.device)]


@entmax.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    return _outputs(q, v)


@entmax_backward.register_fake
def _(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: object) -> list[Tensor]:
    return _gradients(q, k, v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.settings = inputs[4:]


def _pull(ctx: Any, g: Tensor, of_tau: Tensor) -> tuple[Tensor | None, ...]:
    dq, dk, dv, db = torch.ops.rheoscope.entmax_backward(g, *ctx.saved_tensors, *ctx.settings)
    return dq, dk, dv, db if ctx.saved_tensors[3] is not None else None, None, None, None


entmax.register_autograd(_pull, setup_context=_keep)
