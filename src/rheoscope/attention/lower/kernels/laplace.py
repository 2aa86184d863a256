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
    "half": [Tiles(128, 64, 8, 3), Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 2)],
    "wide": [Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 2)],
    "single": [Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 1)],
}
TO_KEYS = {
    "half": [Tiles(64, 64, 4, 2), Tiles(32, 64, 4, 2)],
    "wide": [Tiles(32, 64, 4, 2), Tiles(32, 32, 4, 2)],
    "single": [Tiles(32, 64, 4, 1), Tiles(16, 32, 4, 1)],
}
TO_QUERIES = {
    "half": [Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 2)],
    "wide": [Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 2)],
    "single": [Tiles(64, 32, 4, 1), Tiles(32, 16, 4, 1)],
}
FAR = tl.constexpr(-1e30)


@triton.jit
@no_type_check
def distance(u):
    """sqrt(u), and one over it: both 0 where rounding leaves nothing."""
    inverse = tl.where(u > 0, tl.rsqrt(tl.maximum(u, 1e-30)), 0.0)
    return u * inverse, inverse


@triton.jit
@no_type_check
def average(
    acc, top, mass, q, q2, k, v, k2, sk, sv, i, low, high, M, N, a,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        near = tl.dot(q, turned(k, j, sk, N, D, MASKED), input_precision=PRECISION)
        z = tl.sqrt(tl.maximum(q2[:, None] + line(k2, j, N, MASKED)[None, :] - 2.0 * near, 0.0)) * a
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
    Q, K, V, Q2, K2, OUT, TOTAL, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, a,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # the longest rows first
    i = start + tl.arange(0, BLOCK_M)
    q, q2 = tile(head(Q, at, H, qb0, qh0), i, qm, M, D, True), line(Q2 + at.to(tl.int64) * M, i, M, True)
    k, v, k2 = head(K, at, H, kb0, kh0), head(V, at, H, vb0, vh0), K2 + at.to(tl.int64) * N
    whole, last = keys_of(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    acc = tl.zeros([BLOCK_M, E], tl.float32)
    top, mass = tl.full([BLOCK_M], FAR, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    acc, top, mass = average(acc, top, mass, q, q2, k, v, k2, kn, vn, i, 0, whole, M, N, a,
                             CAUSAL, PRECISION, D, E, BLOCK_N, False)  # fmt: skip
    acc, top, mass = average(acc, top, mass, q, q2, k, v, k2, kn, vn, i, whole, last, M, N, a,
                             CAUSAL, PRECISION, D, E, BLOCK_N, True)  # fmt: skip
    store(OUT + at.to(tl.int64) * M * E, i, M, acc / mass[:, None], E)
    tl.store(TOTAL + at.to(tl.int64) * M + i, top + tl.log2(mass), mask=i < M)


@triton.jit
@no_type_check
def queries_pass(
    dq, pulls, q, q2, g, total, mean, k, v, k2, sk, sv, i, low, high, M, N, a, gamma,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """sum_j t k and sum_j t, over keys low..high."""
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        keys = tile(k, j, sk, N, D, MASKED)
        near = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
        far, inverse = distance(q2[:, None] + line(k2, j, N, MASKED)[None, :] - 2.0 * near)
        p = tl.exp2(far * a - total[:, None])
        if MASKED:
            p = tl.where(permitted(i[:, None], j[None, :], M, N, CAUSAL), p, 0.0)
        dp = tl.dot(g, turned(v, j, sv, N, E, MASKED), input_precision=PRECISION)
        t = (p * (mean[:, None] - dp) * (inverse * gamma)).to(keys.dtype)
        dq = tl.dot(t, keys, dq, input_precision=PRECISION)
        pulls += tl.sum(t.to(tl.float32), 1)
    return dq, pulls


@kernel
@no_type_check
def to_queries(
    Q, K, V, Q2, K2, G, OUT, TOTAL, MEAN, DQ, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, a, gamma,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dq, and do.o of every row, which `to_keys` reads."""
    at = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    i = start + tl.arange(0, BLOCK_M)
    row = at.to(tl.int64) * M
    q, q2 = tile(head(Q, at, H, qb0, qh0), i, qm, M, D, True), line(Q2 + row, i, M, True)
    g, total = tile(G + row * E, i, E, M, E, True), line(TOTAL + row, i, M, True)
    mean = tl.sum(g.to(tl.float32) * tile(OUT + row * E, i, E, M, E, True).to(tl.float32), 1)
    tl.store(MEAN + row + i, mean, mask=i < M)
    k, v, k2 = head(K, at, H, kb0, kh0), head(V, at, H, vb0, vh0), K2 + at.to(tl.int64) * N
    whole, last = keys_of(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    dq, pulls = tl.zeros([BLOCK_M, D], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    dq, pulls = queries_pass(dq, pulls, q, q2, g, total, mean, k, v, k2, kn, vn, i, 0, whole, M, N, a, gamma,
                             CAUSAL, PRECISION, D, E, BLOCK_N, False)  # fmt: skip
    dq, pulls = queries_pass(dq, pulls, q, q2, g, total, mean, k, v, k2, kn, vn, i, whole, last, M, N, a, gamma,
                             CAUSAL, PRECISION, D, E, BLOCK_N, True)  # fmt: skip
    store(DQ + row * D, i, M, pulls[:, None] * q.to(tl.float32) - dq, D)


@triton.jit
@no_type_check
def keys_pass(
    dk, dv, pulls, k, v, k2, q, g, q2, total, mean, sq, j, low, high, M, N, a, gamma,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_M: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """sum_i t q, dv and sum_i t, over queries low..high."""
    for start in range(low, high, BLOCK_M):
        i = start + tl.arange(0, BLOCK_M)
        queries = tile(q, i, sq, M, D, MASKED)
        near = tl.dot(k, tl.trans(queries), input_precision=PRECISION)
        far, inverse = distance(k2[:, None] + line(q2, i, M, MASKED)[None, :] - 2.0 * near)
        p = tl.exp2(far * a - line(total, i, M, MASKED)[None, :])
        if MASKED:
            p = tl.where(permitted(i[None, :], j[:, None], M, N, CAUSAL), p, 0.0)
        gradient = tile(g, i, E, M, E, MASKED)
        dv = tl.dot(p.to(gradient.dtype), gradient, dv, input_precision=PRECISION)
        dp = tl.dot(v, tl.trans(gradient), input_precision=PRECISION)
        t = (p * (line(mean, i, M, MASKED)[None, :] - dp) * (inverse * gamma)).to(queries.dtype)
        dk = tl.dot(t, queries, dk, input_precision=PRECISION)
        pulls += tl.sum(t.to(tl.float32), 1)
    return dk, dv, pulls


@kernel
@no_type_check
def to_keys(
    Q, K, V, Q2, K2, G, TOTAL, MEAN, DK, DV, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, a, gamma,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(1)
    start = tl.program_id(0) * BLOCK_N
    j = start + tl.arange(0, BLOCK_N)
    k, v = tile(head(K, at, H, kb0, kh0), j, kn, N, D, True), tile(head(V, at, H, vb0, vh0), j, vn, N, E, True)
    k2, row = line(K2 + at.to(tl.int64) * N, j, N, True), at.to(tl.int64) * M
    q, g, q2, total, mean = head(Q, at, H, qb0, qh0), G + row * E, Q2 + row, TOTAL + row, MEAN + row
    first, whole, end = queries_of(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    dk, dv = tl.zeros([BLOCK_N, D], tl.float32), tl.zeros([BLOCK_N, E], tl.float32)
    pulls = tl.zeros([BLOCK_N], tl.float32)
    dk, dv, pulls = keys_pass(dk, dv, pulls, k, v, k2, q, g, q2, total, mean, qm, j, first, tl.minimum(whole, M),
                              M, N, a, gamma, CAUSAL, PRECISION, D, E, BLOCK_M, True)  # fmt: skip
    dk, dv, pulls = keys_pass(dk, dv, pulls, k, v, k2, q, g, q2, total, mean, qm, j, whole, end,
                              M, N, a, gamma, CAUSAL, PRECISION, D, E, BLOCK_M, False)  # fmt: skip
    dk, dv, pulls = keys_pass(dk, dv, pulls, k, v, k2, q, g, q2, total, mean, qm, j, end, M,
                              M, N, a, gamma, CAUSAL, PRECISION, D, E, BLOCK_M, True)  # fmt: skip
    store(DK + at.to(tl.int64) * N * D, j, N, pulls[:, None] * k.to(tl.float32) - dk, D)
    store(DV + at.to(tl.int64) * N * E, j, N, dv, E)


def _kind(q: Tensor, v: Tensor, causal: bool) -> dict[str, Any]:
    return {"CAUSAL": causal, "PRECISION": precision(q), "D": q.shape[-1], "E": v.shape[-1]}


def _squares(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).square()


@torch.library.custom_op(
    "rheoscope::laplace",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, float gamma, bool causal) -> (Tensor, Tensor)",
)
def laplace(q: Tensor, k: Tensor, v: Tensor, gamma: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Outputs, and the logarithm (base 2) of what each row is divided by."""
    (b, h, m), n = q.shape[:3], k.shape[-2]
    out, total = _outputs(q, v)
    launch(
        forward,
        FORWARD[kind_of(q, v)],
        lambda t: (triton.cdiv(m, t.BLOCK_M), b * h),
        *(q, k, v, _squares(q), _squares(k), out, total, *strides(q, k, v), h, m, n, -gamma * LOG2E),
        **_kind(q, v, causal),
    )
    return out, total


@torch.library.custom_op(
    "rheoscope::laplace_backward",
    mutates_args=(),
    schema="(Tensor g, Tensor q, Tensor k, Tensor v, Tensor out, Tensor total, float gamma, bool causal) -> Tensor[]",
)
def laplace_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, total: Tensor, gamma: float, causal: bool
) -> list[Tensor]:
    """The gradients of q, k and v."""
    (b, h, m), n, g, kind = q.shape[:3], k.shape[-2], g.contiguous(), kind_of(q, v)
    dq, dk, dv = _like(q, k, v)
    mean, squares = torch.empty_like(total), (_squares(q), _squares(k))
    shapes, constants = (*strides(q, k, v), h, m, n, -gamma * LOG2E, gamma), _kind(q, v, causal)
    launch(
        to_queries,
        TO_QUERIES[kind],
        lambda t: (triton.cdiv(m, t.BLOCK_M), b * h),
        *(q, k, v, *squares, g, out, total, mean, dq, *shapes),
        **constants,
    )
    launch(
        to_keys,
        TO_KEYS[kind],
        lambda t: (triton.cdiv(n, t.BLOCK_N), b * h),
        *(q, k, v, *squares, g, total, mean, dk, dv, *shapes),
        **constants,
    )
    return [dq, dk, dv]


def _outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return v.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


def _like(*tensors: Tensor) -> list[Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors]


@laplace.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, gamma: float, causal: bool) -> tuple[Tensor, Tensor]:
    return _outputs(q, v)


@laplace_backward.register_fake
def _(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: object) -> list[Tensor]:
    return _like(q, k, v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.settings = inputs[3:]


def _pull(ctx: Any, g: Tensor, of_total: Tensor) -> tuple[Tensor | None, ...]:
    dq, dk, dv = torch.ops.rheoscope.laplace_backward(g, *ctx.saved_tensors, *ctx.settings)
    return dq, dk, dv, None, None


laplace.register_autograd(_pull, setup_context=_keep)
