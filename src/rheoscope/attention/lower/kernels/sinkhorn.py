"""Sinkhorn attention in O(N) memory: every half-round is one pass of log-sum-exp, and so is its derivative.

Weights are exp(s_ij + f_i + g_j). A half-round finds f from g along rows, or g from f along columns, with the same
kernel, queries and keys exchanged; the last one, along rows, averages the values on its way.

Backward: with E_t the weights after half-round t (each normalised along its own axis) and P the last of them,

    R = P dP - sum_t E_t u_t,      u_t = the sums along t's axis of P dP - sum_{t' > t} E_t' u_t'

of which the sums of P dP are do.o along rows and v.dv along columns, those of E_t' u_t' along the axis of t' are u_t'
itself, and those along the other axis are one pass. With potentials f_t, g_t of every half-round, and F, G of the last,

    E_t = P e^{f_t - F} e^{g_t - G},      so that      R = P (dP - sum_t a_t(i) b_t(j))

and the sum is a product of narrow matrices: one exponential a pair, however many rounds there are. Where potentials move so far that
these factors leave the range of float32, every E_t is computed by itself.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from rheoscope.attention.lower.kernels.tiles import (
    LOG2E,
    Tiles,
    head,
    kernel,
    kind_of,
    launch,
    line,
    precision,
    store,
    strides,
    tile,
    turned,
)

PASS = {
    "half": [Tiles(128, 64, 4, 3), Tiles(64, 64, 4, 2)],
    "wide": [Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 2)],
    "single": [Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 1)],
}
"""Tiles by the kind of rows, the fastest first (measured on an H200)."""
PULL = {
    "half": [Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 2)],
    "wide": [Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 1)],
    "single": [Tiles(64, 32, 4, 1), Tiles(32, 16, 4, 1)],
}
FAR = tl.constexpr(-1e30)
MOVED = 40.0
"""Powers of two that potentials may move by: what P loses below the smallest float32 is then less than 2^-46 of a weight."""


@triton.jit
@no_type_check
def scores(x, y, sy, fy, j, N, a, PRECISION: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr):
    """(s + f_y) log2(e) of rows x and tokens j of the other side; far below beyond the last one."""
    z = tl.dot(x, turned(y, j, sy, N, D, MASKED), input_precision=PRECISION) * a
    z += line(fy, j, N, MASKED)[None, :] * 1.4426950408889634
    if MASKED:
        z = tl.where((j < N)[None, :], z, FAR)
    return z


@triton.jit
@no_type_check
def potential_pass(
    top, mass, x, y, sy, fy, low, high, N, a,
    PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        z = scores(x, y, sy, fy, start + tl.arange(0, BLOCK_N), N, a, PRECISION, D, MASKED)
        higher = tl.maximum(top, tl.max(z, 1))
        mass = mass * tl.exp2(top - higher) + tl.sum(tl.exp2(z - higher[:, None]), 1)
        top = higher
    return top, mass


@kernel
@no_type_check
def potential(
    X, Y, FY, FX, xb0, xh0, xm, yb0, yh0, yn, H, M, N, a,
    PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """f_x = -log sum_y exp(s + f_y)."""
    at, i = tl.program_id(1), tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    x, y = tile(head(X, at, H, xb0, xh0), i, xm, M, D, True), head(Y, at, H, yb0, yh0)
    fy, whole = FY + at.to(tl.int64) * N, N // BLOCK_N * BLOCK_N
    top, mass = tl.full([BLOCK_M], FAR, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    top, mass = potential_pass(top, mass, x, y, yn, fy, 0, whole, N, a, PRECISION, D, BLOCK_N, False)
    top, mass = potential_pass(top, mass, x, y, yn, fy, whole, N, N, a, PRECISION, D, BLOCK_N, True)
    tl.store(FX + at.to(tl.int64) * M + i, -0.6931471805599453 * (top + tl.log2(mass)), mask=i < M)


@triton.jit
@no_type_check
def average_pass(
    acc, top, mass, q, k, v, sk, sv, g, low, high, N, a,
    PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        z = scores(q, k, sk, g, j, N, a, PRECISION, D, MASKED)
        higher = tl.maximum(top, tl.max(z, 1))
        e, shrink = tl.exp2(z - higher[:, None]), tl.exp2(top - higher)
        values = tile(v, j, sv, N, E, MASKED)
        acc = tl.dot(e.to(values.dtype), values, acc * shrink[:, None], input_precision=PRECISION)
        mass = mass * shrink + tl.sum(e, 1)
        top = higher
    return acc, top, mass


@kernel
@no_type_check
def average(
    Q, K, V, G, OUT, F, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, a,
    PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The last half-round: f and the average of the values."""
    at, i = tl.program_id(1), tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    q, k = tile(head(Q, at, H, qb0, qh0), i, qm, M, D, True), head(K, at, H, kb0, kh0)
    v, g, whole = head(V, at, H, vb0, vh0), G + at.to(tl.int64) * N, N // BLOCK_N * BLOCK_N
    acc = tl.zeros([BLOCK_M, E], tl.float32)
    top, mass = tl.full([BLOCK_M], FAR, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    acc, top, mass = average_pass(acc, top, mass, q, k, v, kn, vn, g, 0, whole, N, a, PRECISION, D, E, BLOCK_N, False)
    acc, top, mass = average_pass(acc, top, mass, q, k, v, kn, vn, g, whole, N, N, a, PRECISION, D, E, BLOCK_N, True)
    store(OUT + at.to(tl.int64) * M * E, i, M, acc / mass[:, None], E)
    tl.store(F + at.to(tl.int64) * M + i, -0.6931471805599453 * (top + tl.log2(mass)), mask=i < M)


@triton.jit
@no_type_check
def carry_pass(
    acc, fx, x, y, sy, fy, u, low, high, N, a,
    PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        z = scores(x, y, sy, fy, j, N, a, PRECISION, D, MASKED)
        acc += tl.sum(tl.exp2(z + fx[:, None]) * line(u, j, N, MASKED)[None, :], 1)
    return acc


@kernel
@no_type_check
def carry(
    X, Y, FX, FY, U, OUT, xb0, xh0, xm, yb0, yh0, yn, H, M, N, a,
    PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """sum_y exp(s + f_x + f_y) u_y."""
    at, i = tl.program_id(1), tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    x, y = tile(head(X, at, H, xb0, xh0), i, xm, M, D, True), head(Y, at, H, yb0, yh0)
    fx = line(FX + at.to(tl.int64) * M, i, M, True) * 1.4426950408889634
    fy, u, whole = FY + at.to(tl.int64) * N, U + at.to(tl.int64) * N, N // BLOCK_N * BLOCK_N
    acc = tl.zeros([BLOCK_M], tl.float32)
    acc = carry_pass(acc, fx, x, y, yn, fy, u, 0, whole, N, a, PRECISION, D, BLOCK_N, False)
    acc = carry_pass(acc, fx, x, y, yn, fy, u, whole, N, N, a, PRECISION, D, BLOCK_N, True)
    tl.store(OUT + at.to(tl.int64) * M + i, acc, mask=i < M)


@triton.jit
@no_type_check
def values_pass(
    dv, k, q, sq, f, g, d, low, high, M, a,
    PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        i = start + tl.arange(0, BLOCK_N)
        z = scores(k, q, sq, f, i, M, a, PRECISION, D, MASKED)
        gradient = tile(d, i, E, M, E, MASKED)
        dv = tl.dot(tl.exp2(z + g[:, None]).to(gradient.dtype), gradient, dv, input_precision=PRECISION)
    return dv


@kernel
@no_type_check
def to_values(
    K, Q, V, G, F, GRADIENT, DV, SUMS, kb0, kh0, kn, qb0, qh0, qm, vb0, vh0, vn, H, N, M, a,
    PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dv = P^T do, and v.dv: the sums of P dP along columns."""
    at, j = tl.program_id(1), tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    k, q = tile(head(K, at, H, kb0, kh0), j, kn, N, D, True), head(Q, at, H, qb0, qh0)
    v = tile(head(V, at, H, vb0, vh0), j, vn, N, E, True)
    g = line(G + at.to(tl.int64) * N, j, N, True) * 1.4426950408889634
    f, d, whole = F + at.to(tl.int64) * M, GRADIENT + at.to(tl.int64) * M * E, M // BLOCK_N * BLOCK_N
    dv = tl.zeros([BLOCK_M, E], tl.float32)
    dv = values_pass(dv, k, q, qm, f, g, d, 0, whole, M, a, PRECISION, D, E, BLOCK_N, False)
    dv = values_pass(dv, k, q, qm, f, g, d, whole, M, M, a, PRECISION, D, E, BLOCK_N, True)
    store(DV + at.to(tl.int64) * N * E, j, N, dv, E)
    tl.store(SUMS + at.to(tl.int64) * N + j, tl.sum(dv * v.to(tl.float32), 1), mask=j < N)


@triton.jit
@no_type_check
def corrected(s, FX, UX, FY, UY, i, j, t, all_x, all_y, M, N, dp, MASKED: tl.constexpr):
    """E_t (dp - u_t) of half-round t; u_t is a number for every x or for every y, and 0 on the other side."""
    e = tl.exp2(s + line(FX + t * all_x, i, M, True)[:, None] + line(FY + t * all_y, j, N, MASKED)[None, :])
    u = line(UX + t * all_x, i, M, True)[:, None] + line(UY + t * all_y, j, N, MASKED)[None, :]
    return e * (dp - u)


@triton.jit
@no_type_check
def pull_pass(
    dx, x, dx_side, y, dy_side, sy, sd, FX, UX, FY, UY, narrow, B, i, low, high, all_x, all_y, M, N, a,
    TOGETHER: tl.constexpr, T: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        other = tile(y, j, sy, N, D, MASKED)
        s = tl.dot(x, tl.trans(other), input_precision=PRECISION) * a
        if MASKED:
            s = tl.where((j < N)[None, :], s, FAR)
        dp = tl.dot(dx_side, turned(dy_side, j, sd, N, E, MASKED), input_precision=PRECISION)
        if TOGETHER:
            taken = tl.dot(narrow, turned(B, j, K, N, K, MASKED), input_precision="tf32x3")
            last = (T - 1) * all_x, (T - 1) * all_y
            p = tl.exp2(s + line(FX + last[0], i, M, True)[:, None] + line(FY + last[1], j, N, MASKED)[None, :])
            r = p * (dp - taken)
        else:
            r = corrected(s, FX, UX, FY, UY, i, j, T - 1, all_x, all_y, M, N, dp, MASKED)
            for t in range(T - 1):
                r += corrected(s, FX, UX, FY, UY, i, j, t, all_x, all_y, M, N, 0.0, MASKED)
        dx = tl.dot(r.to(other.dtype), other, dx, input_precision=PRECISION)
    return dx


@kernel
@no_type_check
def pull(
    X, Y, DX_SIDE, DY_SIDE, FX, UX, FY, UY, A, B, NEAR, DX, xb0, xh0, xm, yb0, yh0, yn, ab0, ah0, an, bb0, bh0, bn,
    all_x, all_y, H, M, N, scale, a,
    T: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """scale R y, one row for every x: dq with queries for x, dk with keys; the sides' products are dP, potentials are in powers of two.

    NEAR says whether potentials stay near enough for all half-rounds to be taken together.
    """
    at, i = tl.program_id(1), tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    x, y = tile(head(X, at, H, xb0, xh0), i, xm, M, D, True), head(Y, at, H, yb0, yh0)
    a_side, b_side = tile(head(DX_SIDE, at, H, ab0, ah0), i, an, M, E, True), head(DY_SIDE, at, H, bb0, bh0)
    narrow, b = tile(A + at.to(tl.int64) * M * K, i, K, M, K, True), B + at.to(tl.int64) * N * K
    fx, ux = FX + at.to(tl.int64) * M, UX + at.to(tl.int64) * M
    fy, uy, whole = FY + at.to(tl.int64) * N, UY + at.to(tl.int64) * N, N // BLOCK_N * BLOCK_N
    dx = tl.zeros([BLOCK_M, D], tl.float32)
    if tl.load(NEAR) != 0:
        dx = pull_pass(dx, x, a_side, y, b_side, yn, bn, fx, ux, fy, uy, narrow, b, i, 0, whole, all_x, all_y, M, N, a,
                       True, T, K, PRECISION, D, E, BLOCK_N, False)  # fmt: skip
        dx = pull_pass(dx, x, a_side, y, b_side, yn, bn, fx, ux, fy, uy, narrow, b, i, whole, N, all_x, all_y, M, N, a,
                       True, T, K, PRECISION, D, E, BLOCK_N, True)  # fmt: skip
    else:
        dx = pull_pass(dx, x, a_side, y, b_side, yn, bn, fx, ux, fy, uy, narrow, b, i, 0, N, all_x, all_y, M, N, a,
                       False, T, K, PRECISION, D, E, BLOCK_N, True)  # fmt: skip
    store(DX + at.to(tl.int64) * M * D, i, M, dx * scale, D)


def _along(function: Any, x: Tensor, y: Tensor, *vectors: Tensor, scale: float) -> None:
    """One pass of a kernel that gives a number for every x from all y."""
    (b, h, m), n = x.shape[:3], y.shape[-2]
    launch(
        function,
        PASS[kind_of(x)],
        lambda t: (triton.cdiv(m, t.BLOCK_M), b * h),
        *(x, y, *vectors, *strides(x, y), h, m, n, scale * LOG2E),
        PRECISION=precision(x),
        D=x.shape[-1],
    )


@torch.library.custom_op(
    "rheoscope::sinkhorn",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, float scale, int rounds) -> (Tensor, Tensor, Tensor)",
)
def sinkhorn(q: Tensor, k: Tensor, v: Tensor, scale: float, rounds: int) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, and the potentials f and g after every round."""
    (b, h, m), n = q.shape[:3], k.shape[-2]
    out, f, g = _outputs(q, k, v, rounds)
    g[0].zero_()
    for t in range(rounds):
        _along(potential, q, k, g[t], f[t], scale=scale)
        _along(potential, k, q, f[t], g[t + 1], scale=scale)
    launch(
        average,
        PASS[kind_of(q, v)],
        lambda t: (triton.cdiv(m, t.BLOCK_M), b * h),
        *(q, k, v, g[rounds], out, f[rounds], *strides(q, k, v), h, m, n, scale * LOG2E),
        PRECISION=precision(q),
        D=q.shape[-1],
        E=v.shape[-1],
    )
    return out, f, g


def _outputs(q: Tensor, k: Tensor, v: Tensor, rounds: int) -> tuple[Tensor, Tensor, Tensor]:
    f, g = (x.new_empty(rounds + 1, *x.shape[:3], dtype=torch.float32) for x in (q, k))
    return v.new_empty(*q.shape[:3], v.shape[-1]), f, g


@torch.library.custom_op(
    "rheoscope::sinkhorn_backward",
    mutates_args=(),
    schema="(Tensor d, Tensor q, Tensor k, Tensor v, Tensor out, Tensor f, Tensor g, float scale) -> Tensor[]",
)
def sinkhorn_backward(
    d: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, f: Tensor, g: Tensor, scale: float
) -> list[Tensor]:
    """The gradients of q, k and v."""
    (b, h, m), n, tiles, d = q.shape[:3], k.shape[-2], kind_of(q, v), d.contiguous()
    dq, dk, dv = _like(q, k, v)
    along_columns = torch.empty_like(g[0])
    kind = {"PRECISION": precision(q), "D": q.shape[-1], "E": v.shape[-1]}
    launch(
        to_values,
        PASS[tiles],
        lambda t: (triton.cdiv(n, t.BLOCK_M), b * h),
        *(k, q, v, g[-1], f[-1], d, dv, along_columns, *strides(k, q, v), h, n, m, scale * LOG2E),
        **kind,
    )
    fs, gs, us, ws = _corrections(q, k, f, g, (d.float() * out.float()).sum(-1), along_columns, scale)
    fs, gs = fs * LOG2E, gs * LOG2E
    narrow, near = _narrow(fs, gs, us, ws)
    kind |= {"T": len(fs), "K": narrow[0].shape[-1]}
    sides = (q, k, d, v, fs, us, gs, ws, *narrow, dq), (k, q, v, d, gs, ws, fs, us, *narrow[::-1], dk)
    for x, y, side, other, fx, ux, fy, uy, of_x, of_y, dx in sides:
        sizes = (fx[0].numel(), fy[0].numel(), h, x.shape[-2], y.shape[-2], scale, scale * LOG2E)
        launch(
            pull,
            PULL[tiles],
            lambda t, x=x: (triton.cdiv(x.shape[-2], t.BLOCK_M), b * h),
            *(x, y, side, other, fx, ux, fy, uy, of_x, of_y, near, dx, *strides(x, y, side, other), *sizes),
            **kind,
        )
    return [dq, dk, dv]


def _narrow(fs: Tensor, gs: Tensor, us: Tensor, ws: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """a_t of every query and b_t of every key, a column a half-round, filled up with 0; and whether no potential moves too far."""
    moved = [x - x[-1] for x in (fs, gs)]
    near = torch.stack([x.abs().amax() for x in moved]).amax() < MOVED
    a, b = (x.exp2() for x in moved)
    along_rows = torch.arange(len(fs), device=fs.device).remainder(2).eq(0).reshape(-1, 1, 1, 1)
    parts = torch.where(along_rows, a * us, a), torch.where(along_rows, b, b * ws)
    missing = max(16, triton.next_power_of_2(len(fs))) - len(fs)
    columns = [pad(x.movedim(0, -1), (0, missing)).contiguous() for x in parts]
    return (columns[0], columns[1]), near.to(torch.int32)


def _corrections(
    q: Tensor, k: Tensor, f: Tensor, g: Tensor, along_rows: Tensor, along_columns: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """f, g of every half-round, and u: a number for every query where it went along rows, for every key where not."""
    rounds = len(f) - 1
    fs, gs = f.repeat_interleave(2, 0)[:-1], g.repeat_interleave(2, 0)[1:]
    us, ws = torch.zeros_like(fs), torch.zeros_like(gs)
    rest, other = along_rows, along_columns
    for t in range(2 * rounds, -1, -1):
        if t % 2 == 0:
            us[t] = rest
            if t:
                carried = torch.empty_like(other)
                _along(carry, k, q, gs[t], fs[t], us[t], carried, scale=scale)
                rest, other = rest - us[t], other - carried
        else:
            ws[t] = other
            carried = torch.empty_like(rest)
            _along(carry, q, k, fs[t], gs[t], ws[t], carried, scale=scale)
            rest, other = rest - carried, other - ws[t]
    return fs, gs, us, ws


def _like(*tensors: Tensor) -> list[Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors]


@sinkhorn.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, scale: float, rounds: int) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(q, k, v, rounds)


@sinkhorn_backward.register_fake
def _(d: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: object) -> list[Tensor]:
    return _like(q, k, v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.scale = inputs[3]


def _pull(ctx: Any, d: Tensor, of_f: Tensor, of_g: Tensor) -> tuple[Tensor | None, ...]:
    dq, dk, dv = torch.ops.rheoscope.sinkhorn_backward(d, *ctx.saved_tensors, ctx.scale)
    return dq, dk, dv, None, None


sinkhorn.register_autograd(_pull, setup_context=_keep)
