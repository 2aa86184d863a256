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
    TileConfig,
    dot_precision,
    head_ptr,
    kernel,
    launch,
    load_rows,
    load_transposed,
    load_vector,
    store_rows,
    strides,
    tile_key,
)

PASS_TILES = {
    "half": [TileConfig(128, 64, 4, 3), TileConfig(64, 64, 4, 2)],
    "wide": [TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)],
    "single": [TileConfig(64, 32, 4, 2), TileConfig(32, 32, 4, 1)],
}
"""Tiles by the kind of rows, the fastest first (measured on an H200)."""
PULLBACK_TILES = {
    "half": [TileConfig(64, 64, 4, 2), TileConfig(64, 32, 4, 2)],
    "wide": [TileConfig(64, 32, 4, 2), TileConfig(32, 32, 4, 1)],
    "single": [TileConfig(64, 32, 4, 1), TileConfig(32, 16, 4, 1)],
}
MASKED_SCORE = tl.constexpr(-1e30)
MAX_POTENTIAL_SHIFT = 40.0
"""Powers of two that potentials may move by: what P loses below the smallest float32 is then less than 2^-46 of a weight."""


@triton.jit
@no_type_check
def scores(x, y, sy, fy, j, N, a, PRECISION: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr):
    """(s + f_y) log2(e) of rows x and tokens j of the other side; far below beyond the last one."""
    z = tl.dot(x, load_transposed(y, j, sy, N, D, MASKED), input_precision=PRECISION) * a
    z += load_vector(fy, j, N, MASKED)[None, :] * 1.4426950408889634
    if MASKED:
        z = tl.where((j < N)[None, :], z, MASKED_SCORE)
    return z


@triton.jit
@no_type_check
def potential_pass(
    row_max, exp_sum, x, y, sy, fy, low, high, N, a,
    PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        z = scores(x, y, sy, fy, start + tl.arange(0, BLOCK_N), N, a, PRECISION, D, MASKED)
        new_max = tl.maximum(row_max, tl.max(z, 1))
        exp_sum = exp_sum * tl.exp2(row_max - new_max) + tl.sum(tl.exp2(z - new_max[:, None]), 1)
        row_max = new_max
    return row_max, exp_sum


@kernel
@no_type_check
def potential(
    X, Y, FY, FX, xb0, xh0, xm, yb0, yh0, yn, H, M, N, a,
    PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """f_x = -log sum_y exp(s + f_y)."""
    head_index, i = tl.program_id(1), tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    x, y = load_rows(head_ptr(X, head_index, H, xb0, xh0), i, xm, M, D, True), head_ptr(Y, head_index, H, yb0, yh0)
    fy, full_end = FY + head_index.to(tl.int64) * N, N // BLOCK_N * BLOCK_N
    row_max, exp_sum = tl.full([BLOCK_M], MASKED_SCORE, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    row_max, exp_sum = potential_pass(row_max, exp_sum, x, y, yn, fy, 0, full_end, N, a, PRECISION, D, BLOCK_N, False)
    row_max, exp_sum = potential_pass(row_max, exp_sum, x, y, yn, fy, full_end, N, N, a, PRECISION, D, BLOCK_N, True)
    tl.store(FX + head_index.to(tl.int64) * M + i, -0.6931471805599453 * (row_max + tl.log2(exp_sum)), mask=i < M)


@triton.jit
@no_type_check
def average_pass(
    acc, row_max, exp_sum, q, k, v, sk, sv, g, low, high, N, a,
    PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        z = scores(q, k, sk, g, j, N, a, PRECISION, D, MASKED)
        new_max = tl.maximum(row_max, tl.max(z, 1))
        e, rescale = tl.exp2(z - new_max[:, None]), tl.exp2(row_max - new_max)
        values = load_rows(v, j, sv, N, E, MASKED)
        acc = tl.dot(e.to(values.dtype), values, acc * rescale[:, None], input_precision=PRECISION)
        exp_sum = exp_sum * rescale + tl.sum(e, 1)
        row_max = new_max
    return acc, row_max, exp_sum


@kernel
@no_type_check
def average_values(
    Q, K, V, G, OUT, F, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, a,
    PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The last half-round: f and the average of the values."""
    head_index, i = tl.program_id(1), tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    q, k = load_rows(head_ptr(Q, head_index, H, qb0, qh0), i, qm, M, D, True), head_ptr(K, head_index, H, kb0, kh0)
    v, g, full_end = head_ptr(V, head_index, H, vb0, vh0), G + head_index.to(tl.int64) * N, N // BLOCK_N * BLOCK_N
    acc = tl.zeros([BLOCK_M, E], tl.float32)
    row_max, exp_sum = tl.full([BLOCK_M], MASKED_SCORE, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    acc, row_max, exp_sum = average_pass(
        acc, row_max, exp_sum, q, k, v, kn, vn, g, 0, full_end, N, a, PRECISION, D, E, BLOCK_N, False
    )
    acc, row_max, exp_sum = average_pass(
        acc, row_max, exp_sum, q, k, v, kn, vn, g, full_end, N, N, a, PRECISION, D, E, BLOCK_N, True
    )
    store_rows(OUT + head_index.to(tl.int64) * M * E, i, M, acc / exp_sum[:, None], E)
    tl.store(F + head_index.to(tl.int64) * M + i, -0.6931471805599453 * (row_max + tl.log2(exp_sum)), mask=i < M)


@triton.jit
@no_type_check
def weighted_sum_pass(
    acc, fx, x, y, sy, fy, u, low, high, N, a,
    PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        z = scores(x, y, sy, fy, j, N, a, PRECISION, D, MASKED)
        acc += tl.sum(tl.exp2(z + fx[:, None]) * load_vector(u, j, N, MASKED)[None, :], 1)
    return acc


@kernel
@no_type_check
def weighted_sum(
    X, Y, FX, FY, U, OUT, xb0, xh0, xm, yb0, yh0, yn, H, M, N, a,
    PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """sum_y exp(s + f_x + f_y) u_y."""
    head_index, i = tl.program_id(1), tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    x, y = load_rows(head_ptr(X, head_index, H, xb0, xh0), i, xm, M, D, True), head_ptr(Y, head_index, H, yb0, yh0)
    fx = load_vector(FX + head_index.to(tl.int64) * M, i, M, True) * 1.4426950408889634
    fy, u, full_end = FY + head_index.to(tl.int64) * N, U + head_index.to(tl.int64) * N, N // BLOCK_N * BLOCK_N
    acc = tl.zeros([BLOCK_M], tl.float32)
    acc = weighted_sum_pass(acc, fx, x, y, yn, fy, u, 0, full_end, N, a, PRECISION, D, BLOCK_N, False)
    acc = weighted_sum_pass(acc, fx, x, y, yn, fy, u, full_end, N, N, a, PRECISION, D, BLOCK_N, True)
    tl.store(OUT + head_index.to(tl.int64) * M + i, acc, mask=i < M)


@triton.jit
@no_type_check
def values_pass(
    dv, k, q, sq, f, g, grad_ptr, low, high, M, a,
    PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        i = start + tl.arange(0, BLOCK_N)
        z = scores(k, q, sq, f, i, M, a, PRECISION, D, MASKED)
        gradient = load_rows(grad_ptr, i, E, M, E, MASKED)
        dv = tl.dot(tl.exp2(z + g[:, None]).to(gradient.dtype), gradient, dv, input_precision=PRECISION)
    return dv


@kernel
@no_type_check
def values_backward(
    K, Q, V, G, F, GRADIENT, DV, SUMS, kb0, kh0, kn, qb0, qh0, qm, vb0, vh0, vn, H, N, M, a,
    PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dv = P^T do, and v.dv: the sums of P dP along columns."""
    head_index, j = tl.program_id(1), tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    k, q = load_rows(head_ptr(K, head_index, H, kb0, kh0), j, kn, N, D, True), head_ptr(Q, head_index, H, qb0, qh0)
    v = load_rows(head_ptr(V, head_index, H, vb0, vh0), j, vn, N, E, True)
    g = load_vector(G + head_index.to(tl.int64) * N, j, N, True) * 1.4426950408889634
    f, grad_ptr, full_end = (
        F + head_index.to(tl.int64) * M,
        GRADIENT + head_index.to(tl.int64) * M * E,
        M // BLOCK_N * BLOCK_N,
    )
    dv = tl.zeros([BLOCK_M, E], tl.float32)
    dv = values_pass(dv, k, q, qm, f, g, grad_ptr, 0, full_end, M, a, PRECISION, D, E, BLOCK_N, False)
    dv = values_pass(dv, k, q, qm, f, g, grad_ptr, full_end, M, M, a, PRECISION, D, E, BLOCK_N, True)
    store_rows(DV + head_index.to(tl.int64) * N * E, j, N, dv, E)
    tl.store(SUMS + head_index.to(tl.int64) * N + j, tl.sum(dv * v.to(tl.float32), 1), mask=j < N)


@triton.jit
@no_type_check
def corrected_gradient(s, FX, UX, FY, UY, i, j, t, all_x, all_y, M, N, dp, MASKED: tl.constexpr):
    """E_t (dp - u_t) of half-round t; u_t is a number for every x or for every y, and 0 on the other side."""
    e = tl.exp2(
        s + load_vector(FX + t * all_x, i, M, True)[:, None] + load_vector(FY + t * all_y, j, N, MASKED)[None, :]
    )
    u = load_vector(UX + t * all_x, i, M, True)[:, None] + load_vector(UY + t * all_y, j, N, MASKED)[None, :]
    return e * (dp - u)


@triton.jit
@no_type_check
def pullback_pass(
    dx, x, dp_x, y, dp_y, sy, sd, FX, UX, FY, UY, factors_x, FACTORS_Y, i, low, high, all_x, all_y, M, N, a,
    FACTORED: tl.constexpr, T: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        y_rows = load_rows(y, j, sy, N, D, MASKED)
        s = tl.dot(x, tl.trans(y_rows), input_precision=PRECISION) * a
        if MASKED:
            s = tl.where((j < N)[None, :], s, MASKED_SCORE)
        dp = tl.dot(dp_x, load_transposed(dp_y, j, sd, N, E, MASKED), input_precision=PRECISION)
        if FACTORED:
            correction = tl.dot(factors_x, load_transposed(FACTORS_Y, j, K, N, K, MASKED), input_precision="tf32x3")
            last_round = (T - 1) * all_x, (T - 1) * all_y
            p = tl.exp2(
                s
                + load_vector(FX + last_round[0], i, M, True)[:, None]
                + load_vector(FY + last_round[1], j, N, MASKED)[None, :]
            )
            r = p * (dp - correction)
        else:
            r = corrected_gradient(s, FX, UX, FY, UY, i, j, T - 1, all_x, all_y, M, N, dp, MASKED)
            for t in range(T - 1):
                r += corrected_gradient(s, FX, UX, FY, UY, i, j, t, all_x, all_y, M, N, 0.0, MASKED)
        dx = tl.dot(r.to(y_rows.dtype), y_rows, dx, input_precision=PRECISION)
    return dx


@kernel
@no_type_check
def pullback(
    X, Y, DP_X, DP_Y, FX, UX, FY, UY, FACTORS_X, FACTORS_Y, STABLE, DX, xb0, xh0, xm, yb0, yh0, yn, ab0, ah0, an, bb0, bh0, bn,
    all_x, all_y, H, M, N, scale, a,
    T: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """scale R y, one row for every x: dq with queries for x, dk with keys; the sides' products are dP, potentials are in powers of two.

    NEAR says whether potentials stay near enough for all half-rounds to be taken together.
    """
    head_index, i = tl.program_id(1), tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    x, y = load_rows(head_ptr(X, head_index, H, xb0, xh0), i, xm, M, D, True), head_ptr(Y, head_index, H, yb0, yh0)
    dp_x, dp_y = (
        load_rows(head_ptr(DP_X, head_index, H, ab0, ah0), i, an, M, E, True),
        head_ptr(DP_Y, head_index, H, bb0, bh0),
    )
    factors_x, factors_y = (
        load_rows(FACTORS_X + head_index.to(tl.int64) * M * K, i, K, M, K, True),
        FACTORS_Y + head_index.to(tl.int64) * N * K,
    )
    fx, ux = FX + head_index.to(tl.int64) * M, UX + head_index.to(tl.int64) * M
    fy, uy, full_end = FY + head_index.to(tl.int64) * N, UY + head_index.to(tl.int64) * N, N // BLOCK_N * BLOCK_N
    dx = tl.zeros([BLOCK_M, D], tl.float32)
    if tl.load(STABLE) != 0:
        dx = pullback_pass(dx, x, dp_x, y, dp_y, yn, bn, fx, ux, fy, uy, factors_x, factors_y, i, 0, full_end, all_x, all_y, M, N, a,
                       True, T, K, PRECISION, D, E, BLOCK_N, False)  # fmt: skip
        dx = pullback_pass(dx, x, dp_x, y, dp_y, yn, bn, fx, ux, fy, uy, factors_x, factors_y, i, full_end, N, all_x, all_y, M, N, a,
                       True, T, K, PRECISION, D, E, BLOCK_N, True)  # fmt: skip
    else:
        dx = pullback_pass(dx, x, dp_x, y, dp_y, yn, bn, fx, ux, fy, uy, factors_x, factors_y, i, 0, N, all_x, all_y, M, N, a,
                       False, T, K, PRECISION, D, E, BLOCK_N, True)  # fmt: skip
    store_rows(DX + head_index.to(tl.int64) * M * D, i, M, dx * scale, D)


def _launch_pass(pass_kernel: Any, x: Tensor, y: Tensor, *vectors: Tensor, scale: float) -> None:
    """One pass of a kernel that gives a number for every x from all y."""
    (b, h, m), n = x.shape[:3], y.shape[-2]
    launch(
        pass_kernel,
        PASS_TILES[tile_key(x)],
        lambda config: (triton.cdiv(m, config.BLOCK_M), b * h),
        *(x, y, *vectors, *strides(x, y), h, m, n, scale * LOG2E),
        PRECISION=dot_precision(x),
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
    out, f, g = _empty_outputs(q, k, v, rounds)
    g[0].zero_()
    for t in range(rounds):
        _launch_pass(potential, q, k, g[t], f[t], scale=scale)
        _launch_pass(potential, k, q, f[t], g[t + 1], scale=scale)
    launch(
        average_values,
        PASS_TILES[tile_key(q, v)],
        lambda config: (triton.cdiv(m, config.BLOCK_M), b * h),
        *(q, k, v, g[rounds], out, f[rounds], *strides(q, k, v), h, m, n, scale * LOG2E),
        PRECISION=dot_precision(q),
        D=q.shape[-1],
        E=v.shape[-1],
    )
    return out, f, g


def _empty_outputs(q: Tensor, k: Tensor, v: Tensor, rounds: int) -> tuple[Tensor, Tensor, Tensor]:
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
    (b, h, m), n, key, d = q.shape[:3], k.shape[-2], tile_key(q, v), d.contiguous()
    dq, dk, dv = _empty_like(q, k, v)
    column_sums = torch.empty_like(g[0])
    constants = {"PRECISION": dot_precision(q), "D": q.shape[-1], "E": v.shape[-1]}
    launch(
        values_backward,
        PASS_TILES[key],
        lambda config: (triton.cdiv(n, config.BLOCK_M), b * h),
        *(k, q, v, g[-1], f[-1], d, dv, column_sums, *strides(k, q, v), h, n, m, scale * LOG2E),
        **constants,
    )
    f_rounds, g_rounds, query_corrections, key_corrections = _round_corrections(
        q, k, f, g, (d.float() * out.float()).sum(-1), column_sums, scale
    )
    f_rounds, g_rounds = f_rounds * LOG2E, g_rounds * LOG2E
    factors, is_stable = _round_factors(f_rounds, g_rounds, query_corrections, key_corrections)
    constants |= {"T": len(f_rounds), "K": factors[0].shape[-1]}
    passes = (
        (q, k, d, v, f_rounds, query_corrections, g_rounds, key_corrections, *factors, dq),
        (k, q, v, d, g_rounds, key_corrections, f_rounds, query_corrections, *factors[::-1], dk),
    )
    for x, y, dp_x, dp_y, fx, ux, fy, uy, factors_x, factors_y, dx in passes:
        launch_args = (fx[0].numel(), fy[0].numel(), h, x.shape[-2], y.shape[-2], scale, scale * LOG2E)
        launch(
            pullback,
            PULLBACK_TILES[key],
            lambda config, x=x: (triton.cdiv(x.shape[-2], config.BLOCK_M), b * h),
            *(
                x,
                y,
                dp_x,
                dp_y,
                fx,
                ux,
                fy,
                uy,
                factors_x,
                factors_y,
                is_stable,
                dx,
                *strides(x, y, dp_x, dp_y),
                *launch_args,
            ),
            **constants,
        )
    return [dq, dk, dv]


def _round_factors(
    f_rounds: Tensor, g_rounds: Tensor, query_corrections: Tensor, key_corrections: Tensor
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """a_t of every query and b_t of every key, a column a half-round, filled up with 0; and whether no potential moves too far."""
    shifts = [x - x[-1] for x in (f_rounds, g_rounds)]
    is_stable = torch.stack([x.abs().amax() for x in shifts]).amax() < MAX_POTENTIAL_SHIFT
    a, b = (x.exp2() for x in shifts)
    is_row_round = torch.arange(len(f_rounds), device=f_rounds.device).remainder(2).eq(0).reshape(-1, 1, 1, 1)
    factors = torch.where(is_row_round, a * query_corrections, a), torch.where(is_row_round, b, b * key_corrections)
    padding = max(16, triton.next_power_of_2(len(f_rounds))) - len(f_rounds)
    columns = [pad(x.movedim(0, -1), (0, padding)).contiguous() for x in factors]
    return (columns[0], columns[1]), is_stable.to(torch.int32)


def _round_corrections(
    q: Tensor, k: Tensor, f: Tensor, g: Tensor, row_sums: Tensor, column_sums: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """f, g of every half-round, and u: a number for every query where it went along rows, for every key where not."""
    rounds = len(f) - 1
    f_rounds, g_rounds = f.repeat_interleave(2, 0)[:-1], g.repeat_interleave(2, 0)[1:]
    query_corrections, key_corrections = torch.zeros_like(f_rounds), torch.zeros_like(g_rounds)
    row_residual, column_residual = row_sums, column_sums
    for t in range(2 * rounds, -1, -1):
        if t % 2 == 0:
            query_corrections[t] = row_residual
            if t:
                cross_sums = torch.empty_like(column_residual)
                _launch_pass(
                    weighted_sum, k, q, g_rounds[t], f_rounds[t], query_corrections[t], cross_sums, scale=scale
                )
                row_residual, column_residual = row_residual - query_corrections[t], column_residual - cross_sums
        else:
            key_corrections[t] = column_residual
            cross_sums = torch.empty_like(row_residual)
            _launch_pass(weighted_sum, q, k, f_rounds[t], g_rounds[t], key_corrections[t], cross_sums, scale=scale)
            row_residual, column_residual = row_residual - cross_sums, column_residual - key_corrections[t]
    return f_rounds, g_rounds, query_corrections, key_corrections


def _empty_like(*tensors: Tensor) -> list[Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors]


@sinkhorn.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, scale: float, rounds: int) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_outputs(q, k, v, rounds)


@sinkhorn_backward.register_fake
def _(d: Tensor, q: Tensor, k: Tensor, v: Tensor, *unused: object) -> list[Tensor]:
    return _empty_like(q, k, v)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.scale = inputs[3]


def _backward(ctx: Any, d: Tensor, grad_f: Tensor, grad_g: Tensor) -> tuple[Tensor | None, ...]:
    dq, dk, dv = torch.ops.rheoscope.sinkhorn_backward(d, *ctx.saved_tensors, ctx.scale)
    return dq, dk, dv, None, None


sinkhorn.register_autograd(_backward, setup_context=_save_for_backward)
