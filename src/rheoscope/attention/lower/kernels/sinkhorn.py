"""Triton kernels for Sinkhorn attention in O(N) memory, in which every half-round is one log-sum-exp pass.

The weights are exp(s_ij + f_i + g_j). A half-round computes f from g along the rows, or g from f along the columns, with
the same kernel and the roles of queries and keys exchanged. The last half-round, along the rows, also averages the values.

Backward: let E_t be the weights after half-round t, each normalised along its own axis, and let P be the last of them.

    R = P dP - sum_t E_t u_t,      u_t = the sums along t's axis of P dP - sum_{t' > t} E_t' u_t'

The sums of P dP are do.o along the rows and v.dv along the columns. The sums of E_t' u_t' along the axis of t' are u_t'
itself, and those along the other axis take one pass. With potentials f_t, g_t of every half-round, and F, G of the last,

    E_t = P e^{f_t - F} e^{g_t - G},      so that      R = P (dP - sum_t a_t(i) b_t(j))

The sum over t is a product of narrow matrices, so a pair costs one exponential for any number of rounds. If potentials
change so much that these factors overflow float32, the kernel computes every E_t separately.
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from rheoscope.attention.lower.kernels.tile_table import tiles_for
from rheoscope.attention.lower.kernels.tiles import (
    LOG2E,
    MASKED_SCORE,
    Keys,
    dot_precision,
    empty_like,
    head_rows,
    kernel,
    launch,
    load_contiguous,
    load_rows,
    load_transposed,
    load_transposed_tile,
    load_vector,
    masked_vector,
    query_grid,
    store_rows,
    with_strides,
    zero_rows,
    zero_vector,
)

MAX_POTENTIAL_SHIFT = 40.0
"""The largest change of a potential, in powers of two: the loss of P to underflow is then below 2^-46 of a weight."""


class Spec(NamedTuple):
    """Compile-time constants: widths D of keys and E of values, T half-rounds and K columns of their factors."""

    PRECISION: str
    D: int
    E: int = 0
    T: int = 0
    K: int = 0


class Side(NamedTuple):
    """Queries or keys in the backward pass.

    dP is the product of the two sides' `dp` rows. `potentials` (in powers of two) and `corrections` u_t have one vector
    for each half-round. `factors` are a_t or b_t, one column for each half-round.
    """

    rows: Any
    dp: Any
    potentials: Any
    corrections: Any
    factors: Any


@triton.jit
@no_type_check
def scores(x, y, fy, j, N, a, SPEC: tl.constexpr, MASKED: tl.constexpr):
    """(s + f_y) log2(e) of rows x and tokens j of the other side, and MASKED_SCORE beyond the last token."""
    z = tl.dot(x, load_transposed(y, j, N, SPEC.D, MASKED), input_precision=SPEC.PRECISION) * a
    z += load_vector(fy, j, N, MASKED)[None, :] * 1.4426950408889634
    if MASKED:
        z = tl.where((j < N)[None, :], z, MASKED_SCORE)
    return z


@triton.jit
@no_type_check
def potential_pass(
    row_max, exp_sum, x, y, fy, low, high, N, a, SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr
):
    """The running maximum and the sum of exponentials, over the tokens from low to high."""
    for start in range(low, high, TILE.BLOCK_N):
        z = scores(x, y, fy, start + tl.arange(0, TILE.BLOCK_N), N, a, SPEC, MASKED)
        new_max = tl.maximum(row_max, tl.max(z, 1))
        exp_sum = exp_sum * tl.exp2(row_max - new_max) + tl.sum(tl.exp2(z - new_max[:, None]), 1)
        row_max = new_max
    return row_max, exp_sum


@kernel
@no_type_check
def potential(X, Y, FY, FX, H, M, N, a, SPEC: tl.constexpr, TILE: tl.constexpr):
    """f_x = -log sum_y exp(s + f_y)."""
    head_index, i = tl.program_id(1), tl.program_id(0) * TILE.BLOCK_M + tl.arange(0, TILE.BLOCK_M)
    x, y = load_rows(head_rows(X, head_index, H), i, M, SPEC.D, True), head_rows(Y, head_index, H)
    fy, full_end = FY + head_index.to(tl.int64) * N, N // TILE.BLOCK_N * TILE.BLOCK_N
    row_max, exp_sum = masked_vector(TILE.BLOCK_M), zero_vector(TILE.BLOCK_M)
    row_max, exp_sum = potential_pass(row_max, exp_sum, x, y, fy, 0, full_end, N, a, SPEC, TILE, False)
    row_max, exp_sum = potential_pass(row_max, exp_sum, x, y, fy, full_end, N, N, a, SPEC, TILE, True)
    tl.store(FX + head_index.to(tl.int64) * M + i, -0.6931471805599453 * (row_max + tl.log2(exp_sum)), mask=i < M)


@triton.jit
@no_type_check
def average_pass(
    acc, row_max, exp_sum, q, keys, low, high, N, a, SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr
):
    """The weighted sum of values, the running maximum and the sum of exponentials, over the keys from low to high."""
    for start in range(low, high, TILE.BLOCK_N):
        j = start + tl.arange(0, TILE.BLOCK_N)
        z = scores(q, keys.k, keys.vector, j, N, a, SPEC, MASKED)
        new_max = tl.maximum(row_max, tl.max(z, 1))
        e, rescale = tl.exp2(z - new_max[:, None]), tl.exp2(row_max - new_max)
        values = load_rows(keys.v, j, N, SPEC.E, MASKED)
        acc = tl.dot(e.to(values.dtype), values, acc * rescale[:, None], input_precision=SPEC.PRECISION)
        exp_sum = exp_sum * rescale + tl.sum(e, 1)
        row_max = new_max
    return acc, row_max, exp_sum


@kernel
@no_type_check
def average_values(Q, K, V, G, OUT, F, H, M, N, a, SPEC: tl.constexpr, TILE: tl.constexpr):
    """The last half-round: f and the weighted mean of the values."""
    head_index, i = tl.program_id(1), tl.program_id(0) * TILE.BLOCK_M + tl.arange(0, TILE.BLOCK_M)
    q, full_end = load_rows(head_rows(Q, head_index, H), i, M, SPEC.D, True), N // TILE.BLOCK_N * TILE.BLOCK_N
    keys = Keys(head_rows(K, head_index, H), head_rows(V, head_index, H), G + head_index.to(tl.int64) * N)
    acc = zero_rows(TILE.BLOCK_M, SPEC.E)
    row_max, exp_sum = masked_vector(TILE.BLOCK_M), zero_vector(TILE.BLOCK_M)
    acc, row_max, exp_sum = average_pass(acc, row_max, exp_sum, q, keys, 0, full_end, N, a, SPEC, TILE, False)
    acc, row_max, exp_sum = average_pass(acc, row_max, exp_sum, q, keys, full_end, N, N, a, SPEC, TILE, True)
    store_rows(OUT + head_index.to(tl.int64) * M * SPEC.E, i, M, acc / exp_sum[:, None], SPEC.E)
    tl.store(F + head_index.to(tl.int64) * M + i, -0.6931471805599453 * (row_max + tl.log2(exp_sum)), mask=i < M)


@triton.jit
@no_type_check
def weighted_sum_pass(
    acc, fx, x, y, fy, u, low, high, N, a, SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr
):
    """acc + sum_y exp(s + f_x + f_y) u_y over the tokens from low to high."""
    for start in range(low, high, TILE.BLOCK_N):
        j = start + tl.arange(0, TILE.BLOCK_N)
        z = scores(x, y, fy, j, N, a, SPEC, MASKED)
        acc += tl.sum(tl.exp2(z + fx[:, None]) * load_vector(u, j, N, MASKED)[None, :], 1)
    return acc


@kernel
@no_type_check
def weighted_sum(X, Y, FX, FY, U, OUT, H, M, N, a, SPEC: tl.constexpr, TILE: tl.constexpr):
    """sum_y exp(s + f_x + f_y) u_y."""
    head_index, i = tl.program_id(1), tl.program_id(0) * TILE.BLOCK_M + tl.arange(0, TILE.BLOCK_M)
    x, y = load_rows(head_rows(X, head_index, H), i, M, SPEC.D, True), head_rows(Y, head_index, H)
    fx = load_vector(FX + head_index.to(tl.int64) * M, i, M, True) * 1.4426950408889634
    fy, u, full_end = (
        FY + head_index.to(tl.int64) * N,
        U + head_index.to(tl.int64) * N,
        N // TILE.BLOCK_N * TILE.BLOCK_N,
    )
    acc = zero_vector(TILE.BLOCK_M)
    acc = weighted_sum_pass(acc, fx, x, y, fy, u, 0, full_end, N, a, SPEC, TILE, False)
    acc = weighted_sum_pass(acc, fx, x, y, fy, u, full_end, N, N, a, SPEC, TILE, True)
    tl.store(OUT + head_index.to(tl.int64) * M + i, acc, mask=i < M)


@triton.jit
@no_type_check
def values_pass(
    dv, k, q, f, g, grad_ptr, low, high, M, a, SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr
):
    """dv, summed over the queries from low to high."""
    for start in range(low, high, TILE.BLOCK_N):
        i = start + tl.arange(0, TILE.BLOCK_N)
        z = scores(k, q, f, i, M, a, SPEC, MASKED)
        gradient = load_contiguous(grad_ptr, i, M, SPEC.E, MASKED)
        dv = tl.dot(tl.exp2(z + g[:, None]).to(gradient.dtype), gradient, dv, input_precision=SPEC.PRECISION)
    return dv


@kernel
@no_type_check
def values_backward(K, Q, V, G, F, GRADIENT, DV, SUMS, H, N, M, a, SPEC: tl.constexpr, TILE: tl.constexpr):
    """dv = P^T do and v.dv, the column sums of P dP."""
    head_index, j = tl.program_id(1), tl.program_id(0) * TILE.BLOCK_M + tl.arange(0, TILE.BLOCK_M)
    k, q = load_rows(head_rows(K, head_index, H), j, N, SPEC.D, True), head_rows(Q, head_index, H)
    v = load_rows(head_rows(V, head_index, H), j, N, SPEC.E, True)
    g = load_vector(G + head_index.to(tl.int64) * N, j, N, True) * 1.4426950408889634
    f, grad_ptr, full_end = (
        F + head_index.to(tl.int64) * M,
        GRADIENT + head_index.to(tl.int64) * M * SPEC.E,
        M // TILE.BLOCK_N * TILE.BLOCK_N,
    )
    dv = zero_rows(TILE.BLOCK_M, SPEC.E)
    dv = values_pass(dv, k, q, f, g, grad_ptr, 0, full_end, M, a, SPEC, TILE, False)
    dv = values_pass(dv, k, q, f, g, grad_ptr, full_end, M, M, a, SPEC, TILE, True)
    store_rows(DV + head_index.to(tl.int64) * N * SPEC.E, j, N, dv, SPEC.E)
    tl.store(SUMS + head_index.to(tl.int64) * N + j, tl.sum(dv * v.to(tl.float32), 1), mask=j < N)


@triton.jit
@no_type_check
def corrected_gradient(s, x, i, y, j, t, all_x, all_y, M, N, dp, MASKED: tl.constexpr):
    """E_t (dp - u_t) of half-round t; u_t is one number for every x or for every y, and 0 on the other side."""
    fx = load_vector(x.potentials + t * all_x, i, M, True)[:, None]
    e = tl.exp2(s + fx + load_vector(y.potentials + t * all_y, j, N, MASKED)[None, :])
    ux = load_vector(x.corrections + t * all_x, i, M, True)[:, None]
    return e * (dp - (ux + load_vector(y.corrections + t * all_y, j, N, MASKED)[None, :]))


@triton.jit
@no_type_check
def pullback_pass(
    dx, x, i, y, low, high, all_x, all_y, M, N, a,
    FACTORED: tl.constexpr, SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """dx, summed over the tokens from low to high; x holds loaded tiles and addresses, y addresses only."""
    for start in range(low, high, TILE.BLOCK_N):
        j = start + tl.arange(0, TILE.BLOCK_N)
        y_rows = load_rows(y.rows, j, N, SPEC.D, MASKED)
        s = tl.dot(x.rows, tl.trans(y_rows), input_precision=SPEC.PRECISION) * a
        if MASKED:
            s = tl.where((j < N)[None, :], s, MASKED_SCORE)
        dp = tl.dot(x.dp, load_transposed(y.dp, j, N, SPEC.E, MASKED), input_precision=SPEC.PRECISION)
        if FACTORED:
            y_factors = load_transposed_tile(y.factors, j, SPEC.K, N, SPEC.K, MASKED)
            correction = tl.dot(x.factors, y_factors, input_precision="tf32x3")
            fx = load_vector(x.potentials + (SPEC.T - 1) * all_x, i, M, True)[:, None]
            fy = load_vector(y.potentials + (SPEC.T - 1) * all_y, j, N, MASKED)[None, :]
            r = tl.exp2(s + fx + fy) * (dp - correction)
        else:
            r = corrected_gradient(s, x, i, y, j, SPEC.T - 1, all_x, all_y, M, N, dp, MASKED)
            for t in range(SPEC.T - 1):
                r += corrected_gradient(s, x, i, y, j, t, all_x, all_y, M, N, 0.0, MASKED)
        dx = tl.dot(r.to(y_rows.dtype), y_rows, dx, input_precision=SPEC.PRECISION)
    return dx


@kernel
@no_type_check
def pullback(x_side, y_side, IS_STABLE, DX, all_x, all_y, H, M, N, scale, a, SPEC: tl.constexpr, TILE: tl.constexpr):
    """scale R y, one row for every x: dq with x the queries, dk with x the keys.

    IS_STABLE tells whether the potentials change little enough to combine all half-rounds.
    """
    head_index, i = tl.program_id(1), tl.program_id(0) * TILE.BLOCK_M + tl.arange(0, TILE.BLOCK_M)
    x_offset, y_offset = head_index.to(tl.int64) * M, head_index.to(tl.int64) * N
    full_end = N // TILE.BLOCK_N * TILE.BLOCK_N
    x = Side(
        load_rows(head_rows(x_side.rows, head_index, H), i, M, SPEC.D, True),
        load_rows(head_rows(x_side.dp, head_index, H), i, M, SPEC.E, True),
        x_side.potentials + x_offset,
        x_side.corrections + x_offset,
        load_contiguous(x_side.factors + x_offset * SPEC.K, i, M, SPEC.K, True),
    )
    y = Side(
        head_rows(y_side.rows, head_index, H),
        head_rows(y_side.dp, head_index, H),
        y_side.potentials + y_offset,
        y_side.corrections + y_offset,
        y_side.factors + y_offset * SPEC.K,
    )
    dx = zero_rows(TILE.BLOCK_M, SPEC.D)
    if tl.load(IS_STABLE) != 0:
        dx = pullback_pass(dx, x, i, y, 0, full_end, all_x, all_y, M, N, a, True, SPEC, TILE, False)
        dx = pullback_pass(dx, x, i, y, full_end, N, all_x, all_y, M, N, a, True, SPEC, TILE, True)
    else:
        dx = pullback_pass(dx, x, i, y, 0, N, all_x, all_y, M, N, a, False, SPEC, TILE, True)
    store_rows(DX + x_offset * SPEC.D, i, M, dx * scale, SPEC.D)


def _launch_pass(name: str, pass_kernel: Any, x: Tensor, y: Tensor, *vectors: Tensor, scale: float) -> None:
    """One pass of a kernel that computes one number for every x from all y."""
    sizes = (x.shape[1], x.shape[-2], y.shape[-2], scale * LOG2E)
    launch(
        pass_kernel,
        tiles_for(name, x),
        query_grid(x),
        *(with_strides(x), with_strides(y), *vectors, *sizes),
        spec=Spec(dot_precision(x), x.shape[-1]),
    )


@torch.library.custom_op(
    "rheoscope::sinkhorn",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, float scale, int rounds) -> (Tensor, Tensor, Tensor)",
)
def sinkhorn(q: Tensor, k: Tensor, v: Tensor, scale: float, rounds: int) -> tuple[Tensor, Tensor, Tensor]:
    """Attention outputs, and the potentials f and g after every round."""
    out, f, g = _empty_outputs(q, k, v, rounds)
    g[0].zero_()
    for t in range(rounds):
        _launch_pass("sinkhorn.potential", potential, q, k, g[t], f[t], scale=scale)
        _launch_pass("sinkhorn.potential", potential, k, q, f[t], g[t + 1], scale=scale)
    sizes = (q.shape[1], q.shape[-2], k.shape[-2], scale * LOG2E)
    launch(
        average_values,
        tiles_for("sinkhorn.average_values", q, v),
        query_grid(q),
        *(*map(with_strides, (q, k, v)), g[rounds], out, f[rounds], *sizes),
        spec=Spec(dot_precision(q), q.shape[-1], v.shape[-1]),
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
    dq, dk, dv = empty_like(q, k, v)
    d, h, column_sums = d.contiguous(), q.shape[1], torch.empty_like(g[0])
    spec = Spec(dot_precision(q), q.shape[-1], v.shape[-1])
    launch(
        values_backward,
        tiles_for("sinkhorn.values_backward", q, v),
        query_grid(k),
        *(*map(with_strides, (k, q, v)), g[-1], f[-1], d, dv, column_sums),
        *(h, k.shape[-2], q.shape[-2], scale * LOG2E),
        spec=spec,
    )
    f_rounds, g_rounds, query_corrections, key_corrections = _round_corrections(
        q, k, f, g, (d.float() * out.float()).sum(-1), column_sums, scale
    )
    f_rounds, g_rounds = f_rounds * LOG2E, g_rounds * LOG2E
    factors, is_stable = _round_factors(f_rounds, g_rounds, query_corrections, key_corrections)
    spec = spec._replace(T=len(f_rounds), K=factors[0].shape[-1])
    query_side = Side(with_strides(q), with_strides(d), f_rounds, query_corrections, factors[0])
    key_side = Side(with_strides(k), with_strides(v), g_rounds, key_corrections, factors[1])
    for x, x_side, y, y_side, dx in ((q, query_side, k, key_side, dq), (k, key_side, q, query_side, dk)):
        sizes = (x_side.potentials[0].numel(), y_side.potentials[0].numel(), h, x.shape[-2], y.shape[-2])
        launch(
            pullback,
            tiles_for("sinkhorn.pullback", q, v),
            query_grid(x),
            *(x_side, y_side, is_stable, dx, *sizes, scale, scale * LOG2E),
            spec=spec,
        )
    return [dq, dk, dv]


def _round_factors(
    f_rounds: Tensor, g_rounds: Tensor, query_corrections: Tensor, key_corrections: Tensor
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """a_t of every query and b_t of every key, one column for each half-round, padded with 0; and whether all shifts are small."""
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
    """f and g of every half-round, and u_t: one number for every query (along rows) or for every key (along columns)."""
    rounds = len(f) - 1
    f_rounds, g_rounds = f.repeat_interleave(2, 0)[:-1], g.repeat_interleave(2, 0)[1:]
    query_corrections, key_corrections = torch.zeros_like(f_rounds), torch.zeros_like(g_rounds)
    row_residual, column_residual = row_sums, column_sums
    for t in range(2 * rounds, -1, -1):
        if t % 2 == 0:
            query_corrections[t] = row_residual
            if t:
                cross_sums = torch.empty_like(column_residual)
                vectors = (g_rounds[t], f_rounds[t], query_corrections[t], cross_sums)
                _launch_pass("sinkhorn.weighted_sum", weighted_sum, k, q, *vectors, scale=scale)
                row_residual, column_residual = row_residual - query_corrections[t], column_residual - cross_sums
        else:
            key_corrections[t] = column_residual
            cross_sums = torch.empty_like(row_residual)
            vectors = (f_rounds[t], g_rounds[t], key_corrections[t], cross_sums)
            _launch_pass("sinkhorn.weighted_sum", weighted_sum, q, k, *vectors, scale=scale)
            row_residual, column_residual = row_residual - cross_sums, column_residual - key_corrections[t]
    return f_rounds, g_rounds, query_corrections, key_corrections


@sinkhorn.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, scale: float, rounds: int) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_outputs(q, k, v, rounds)


@sinkhorn_backward.register_fake
def _(d: Tensor, q: Tensor, k: Tensor, v: Tensor, *unused: object) -> list[Tensor]:
    return empty_like(q, k, v)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.scale = inputs[3]


def _backward(ctx: Any, d: Tensor, grad_f: Tensor, grad_g: Tensor) -> tuple[Tensor | None, ...]:
    dq, dk, dv = torch.ops.rheoscope.sinkhorn_backward(d, *ctx.saved_tensors, ctx.scale)
    return dq, dk, dv, None, None


sinkhorn.register_autograd(_backward, setup_context=_save_for_backward)
