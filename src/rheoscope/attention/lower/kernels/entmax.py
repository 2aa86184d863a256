"""Triton kernels for alpha-entmax with 1 < alpha <= 2, whose row thresholds come from Newton's method without sorting.

    u_j = [x_j - tau]_+,   x = (alpha - 1) s,   p = u^r,   r = 1/(alpha - 1),   tau with sum p = 1

The norm |u|_r is convex and decreases with tau. Newton's steps from a tau that is too low therefore increase it and never
pass the root. Each step is one pass over the keys:

    tau <- tau + (|u|_r - 1) |u|_r^{r-1} / sum u^{r-1}

A first pass keeps the largest score of every lane of a tile. The threshold of these scores alone needs no further pass and
is a close lower bound of the row's threshold. Two or three steps over all keys then suffice.

Backward, with g = p^{2 - alpha} = u^{r-1}:   ds = g (dp - <g, dp>/<g, 1>).
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheoscope.attention.lower.kernels.tile_table import tiles_for
from rheoscope.attention.lower.kernels.tiles import (
    MASKED_SCORE,
    Keys,
    dot_precision,
    empty_like,
    empty_outputs,
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

LANE_STEPS = tl.constexpr(8)
"""Newton's steps on the largest scores of the lanes."""
MAX_STEPS = tl.constexpr(24)
"""The maximum of Newton's steps over all keys; three are typical."""


class Spec(NamedTuple):
    """Compile-time constants; R is 1/(alpha - 1), D and E are the widths of keys and values."""

    R: float
    CAUSAL: bool
    BIAS: bool
    PRECISION: str
    D: int
    E: int


class Score(NamedTuple):
    """x = slope q.k + bias (key bias), which is (alpha - 1) s."""

    slope: Any
    bias: Any


class Queries(NamedTuple):
    """The queries of one head: rows, and the addresses of the output's gradient, the thresholds and the mean gradients."""

    q: Any
    g: Any
    tau: Any
    mean: Any


@triton.jit
@no_type_check
def power(u, R: tl.constexpr):
    """u^R for u >= 0, and 0 where u is 0."""
    if R == 0.0:
        u = (u > 0).to(tl.float32)
    elif R == 2.0:
        u = u * u
    elif R != 1.0:
        u = tl.where(u > 0, tl.exp2(R * tl.log2(tl.maximum(u, 1e-37))), 0.0)
    return u


@triton.jit
@no_type_check
def newton_step(power_sum, lower_sum, R: tl.constexpr):
    """Newton's step for tau, from sum u^r and sum u^{r-1}."""
    if R == 1.0:
        norm_power = tl.full(power_sum.shape, 1.0, tl.float32)
    elif R == 2.0:
        norm_power = tl.sqrt(power_sum)
    else:
        norm_power = power(power_sum, 1.0 - 1.0 / R)
    return tl.where(lower_sum > 0, (power_sum - norm_power) / tl.where(lower_sum > 0, lower_sum, 1.0), 0.0)


@triton.jit
@no_type_check
def scaled_scores(q, i, keys, j, M, N, score, SPEC: tl.constexpr, MASKED: tl.constexpr):
    """x = (alpha - 1) s of queries i and keys j, and MASKED_SCORE for pairs that are not allowed."""
    x = tl.dot(q, load_transposed(keys.k, j, N, SPEC.D, MASKED), input_precision=SPEC.PRECISION) * score.slope
    if SPEC.BIAS:
        x += load_vector(keys.vector, j, N, MASKED)[None, :] * score.bias
    if MASKED:
        x = tl.where(is_allowed(i[:, None], j[None, :], M, N, SPEC.CAUSAL), x, MASKED_SCORE)
    return x


@triton.jit
@no_type_check
def lane_max(
    lane_top, q, i, keys, low, high, M, N, score, SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr
):
    """The largest score of every lane, over the keys from low to high."""
    for start in range(low, high, TILE.BLOCK_N):
        j = start + tl.arange(0, TILE.BLOCK_N)
        lane_top = tl.maximum(lane_top, scaled_scores(q, i, keys, j, M, N, score, SPEC, MASKED))
    return lane_top


@triton.jit
@no_type_check
def newton_sums(
    power_sum, lower_sum, tau, q, i, keys, low, high, M, N, score,
    SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """sum u^r and sum u^{r-1} over the keys from low to high."""
    for start in range(low, high, TILE.BLOCK_N):
        j = start + tl.arange(0, TILE.BLOCK_N)
        x = scaled_scores(q, i, keys, j, M, N, score, SPEC, MASKED)
        u = tl.maximum(x - tau[:, None], 0.0)
        lower_power = power(u, SPEC.R - 1.0)
        power_sum += tl.sum(lower_power * u, 1)
        lower_sum += tl.sum(lower_power, 1)
    return power_sum, lower_sum


@triton.jit
@no_type_check
def forward_pass(
    acc, weight_sum, tau, q, i, keys, low, high, M, N, score,
    SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """acc + sum_j p_ij v_j and weight_sum + sum_j p_ij, over the keys from low to high."""
    for start in range(low, high, TILE.BLOCK_N):
        j = start + tl.arange(0, TILE.BLOCK_N)
        x = scaled_scores(q, i, keys, j, M, N, score, SPEC, MASKED)
        p = power(tl.maximum(x - tau[:, None], 0.0), SPEC.R)
        values = load_rows(keys.v, j, N, SPEC.E, MASKED)
        acc = tl.dot(p.to(values.dtype), values, acc, input_precision=SPEC.PRECISION)
        weight_sum += tl.sum(p, 1)
    return acc, weight_sum


@triton.jit
@no_type_check
def masked_lanes(N_ROWS: tl.constexpr, N_LANES: tl.constexpr):
    return tl.full([N_ROWS, N_LANES], MASKED_SCORE, tl.float32)


@kernel
@no_type_check
def forward(Q, K, V, KB, OUT, TAU, H, M, N, score, tolerance, SPEC: tl.constexpr, TILE: tl.constexpr):
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * TILE.BLOCK_M  # the longest rows first
    i = start + tl.arange(0, TILE.BLOCK_M)
    q = load_rows(head_rows(Q, head_index, H), i, M, SPEC.D, True)
    kb = KB
    if SPEC.BIAS:
        kb = KB + head_index.to(tl.int64) * N
    keys = Keys(head_rows(K, head_index, H), head_rows(V, head_index, H), kb)
    full_end, end = key_range(start, M, N, SPEC.CAUSAL, TILE)
    lane_top = masked_lanes(TILE.BLOCK_M, TILE.BLOCK_N)
    lane_top = lane_max(lane_top, q, i, keys, 0, full_end, M, N, score, SPEC, TILE, False)
    lane_top = lane_max(lane_top, q, i, keys, full_end, end, M, N, score, SPEC, TILE, True)
    tau = tl.max(lane_top, 1) - 1.0
    for _ in range(LANE_STEPS):
        u = tl.maximum(lane_top - tau[:, None], 0.0)
        lower_power = power(u, SPEC.R - 1.0)
        tau += tl.maximum(newton_step(tl.sum(lower_power * u, 1), tl.sum(lower_power, 1), SPEC.R), 0.0)
    steps, error = 0, tolerance + 1.0
    while (steps < MAX_STEPS) & (error > tolerance):
        power_sum, lower_sum = zero_vector(TILE.BLOCK_M), zero_vector(TILE.BLOCK_M)
        power_sum, lower_sum = newton_sums(
            power_sum, lower_sum, tau, q, i, keys, 0, full_end, M, N, score, SPEC, TILE, False
        )
        power_sum, lower_sum = newton_sums(
            power_sum, lower_sum, tau, q, i, keys, full_end, end, M, N, score, SPEC, TILE, True
        )
        tau += newton_step(power_sum, lower_sum, SPEC.R)
        error = tl.max(tl.where(i < M, tl.abs(power_sum - 1.0), 0.0), 0)
        steps += 1
    acc, power_sum = zero_rows(TILE.BLOCK_M, SPEC.E), zero_vector(TILE.BLOCK_M)
    acc, power_sum = forward_pass(acc, power_sum, tau, q, i, keys, 0, full_end, M, N, score, SPEC, TILE, False)
    acc, power_sum = forward_pass(acc, power_sum, tau, q, i, keys, full_end, end, M, N, score, SPEC, TILE, True)
    out = acc / tl.where(power_sum > 0, power_sum, 1.0)[:, None]
    store_rows(OUT + head_index.to(tl.int64) * M * SPEC.E, i, M, out, SPEC.E)
    tl.store(TAU + head_index.to(tl.int64) * M + i, tau, mask=i < M)


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
        x = tl.dot(k, tl.trans(q), input_precision=SPEC.PRECISION) * score.slope
        if SPEC.BIAS:
            x += kb[:, None] * score.bias
        u = tl.maximum(x - load_vector(queries.tau, i, M, MASKED)[None, :], 0.0)
        if MASKED:
            u = tl.where(is_allowed(i[None, :], j[:, None], M, N, SPEC.CAUSAL), u, 0.0)
        lower_power = power(u, SPEC.R - 1.0)
        g = load_contiguous(queries.g, i, M, SPEC.E, MASKED)
        dv = tl.dot((lower_power * u).to(g.dtype), g, dv, input_precision=SPEC.PRECISION)
        dp = tl.dot(v, tl.trans(g), input_precision=SPEC.PRECISION)
        ds = lower_power * (dp - load_vector(queries.mean, i, M, MASKED)[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=SPEC.PRECISION)
        if SPEC.BIAS:
            db += tl.sum(ds, 1)
    return dk, dv, db


@kernel
@no_type_check
def keys_backward(Q, K, V, KB, G, TAU, MEAN, DK, DV, DB, H, M, N, scale, score, SPEC: tl.constexpr, TILE: tl.constexpr):
    head_index = tl.program_id(1)
    start = tl.program_id(0) * TILE.BLOCK_N
    j = start + tl.arange(0, TILE.BLOCK_N)
    k = load_rows(head_rows(K, head_index, H), j, N, SPEC.D, True)
    v = load_rows(head_rows(V, head_index, H), j, N, SPEC.E, True)
    row_offset = head_index.to(tl.int64) * M
    queries = Queries(head_rows(Q, head_index, H), G + row_offset * SPEC.E, TAU + row_offset, MEAN + row_offset)
    kb = j.to(tl.float32)
    if SPEC.BIAS:
        kb = load_vector(KB + head_index.to(tl.int64) * N, j, N, True)
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
    sum_gdk, sum_gk, sum_gd, sum_g, tau, centre, q, g, i, keys, low, high, M, N, score,
    SPEC: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """sum_j g d k_j, sum_j g k_j, sum_j g d and sum_j g over the keys from low to high, where d = dp - centre."""
    for start in range(low, high, TILE.BLOCK_N):
        j = start + tl.arange(0, TILE.BLOCK_N)
        k = load_rows(keys.k, j, N, SPEC.D, MASKED)
        x = tl.dot(q, tl.trans(k), input_precision=SPEC.PRECISION) * score.slope
        if SPEC.BIAS:
            x += load_vector(keys.vector, j, N, MASKED)[None, :] * score.bias
        u = tl.maximum(x - tau[:, None], 0.0)
        if MASKED:
            u = tl.where(is_allowed(i[:, None], j[None, :], M, N, SPEC.CAUSAL), u, 0.0)
        lower_power = power(u, SPEC.R - 1.0)
        dp = tl.dot(g, load_transposed(keys.v, j, N, SPEC.E, MASKED), input_precision=SPEC.PRECISION)
        gd = lower_power * (dp - centre[:, None])
        sum_gdk = tl.dot(gd.to(k.dtype), k, sum_gdk, input_precision=SPEC.PRECISION)
        sum_gk = tl.dot(lower_power.to(k.dtype), k, sum_gk, input_precision=SPEC.PRECISION)
        sum_gd += tl.sum(gd, 1)
        sum_g += tl.sum(lower_power, 1)
    return sum_gdk, sum_gk, sum_gd, sum_g


@kernel
@no_type_check
def queries_backward(Q, K, V, KB, OUT, G, TAU, MEAN, DQ, H, M, N, scale, score, SPEC: tl.constexpr, TILE: tl.constexpr):
    """dq, and <g, dp>/<g, 1> of every row, which `keys_backward` reads."""
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * TILE.BLOCK_M
    i = start + tl.arange(0, TILE.BLOCK_M)
    q = load_rows(head_rows(Q, head_index, H), i, M, SPEC.D, True)
    g = load_contiguous(G + head_index.to(tl.int64) * M * SPEC.E, i, M, SPEC.E, True)
    out = load_contiguous(OUT + head_index.to(tl.int64) * M * SPEC.E, i, M, SPEC.E, True)
    centre = tl.sum(out.to(tl.float32) * g.to(tl.float32), 1)  # near the mean, so the sums of d stay small
    tau, kb = load_vector(TAU + head_index.to(tl.int64) * M, i, M, True), KB
    if SPEC.BIAS:
        kb = KB + head_index.to(tl.int64) * N
    keys = Keys(head_rows(K, head_index, H), head_rows(V, head_index, H), kb)
    full_end, end = key_range(start, M, N, SPEC.CAUSAL, TILE)
    sum_gdk, sum_gk = zero_rows(TILE.BLOCK_M, SPEC.D), zero_rows(TILE.BLOCK_M, SPEC.D)
    sum_gd, sum_g = zero_vector(TILE.BLOCK_M), zero_vector(TILE.BLOCK_M)
    sum_gdk, sum_gk, sum_gd, sum_g = queries_pass(
        sum_gdk, sum_gk, sum_gd, sum_g, tau, centre, q, g, i, keys, 0, full_end, M, N, score, SPEC, TILE, False
    )
    sum_gdk, sum_gk, sum_gd, sum_g = queries_pass(
        sum_gdk, sum_gk, sum_gd, sum_g, tau, centre, q, g, i, keys, full_end, end, M, N, score, SPEC, TILE, True
    )
    mean = sum_gd / tl.where(sum_g > 0, sum_g, 1.0)
    dq = (sum_gdk - sum_gk * mean[:, None]) * scale
    store_rows(DQ + head_index.to(tl.int64) * M * SPEC.D, i, M, dq, SPEC.D)
    tl.store(MEAN + head_index.to(tl.int64) * M + i, mean + centre, mask=i < M)


def _spec(q: Tensor, v: Tensor, key_bias: Tensor | None, alpha: float, causal: bool) -> Spec:
    return Spec(1.0 / (alpha - 1.0), causal, key_bias is not None, dot_precision(q), q.shape[-1], v.shape[-1])


@torch.library.custom_op(
    "rheoscope::entmax",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? key_bias, float scale, float alpha, bool causal) -> (Tensor, Tensor)",
)
def entmax(
    q: Tensor, k: Tensor, v: Tensor, key_bias: Tensor | None, scale: float, alpha: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """Attention outputs, and the threshold of every row."""
    out, tau = empty_outputs(q, v)
    tolerance = 1e-4 if q.dtype == torch.float32 else 3e-3  # one further step squares the error
    launch(
        forward,
        tiles_for("entmax.forward", q, v),
        query_grid(q),
        *map(with_strides, (q, k, v)),
        *(key_bias, out, tau, q.shape[1], q.shape[-2], k.shape[-2], Score(scale * (alpha - 1), alpha - 1), tolerance),
        spec=_spec(q, v, key_bias, alpha, causal),
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
    dq, dk, dv, db = _empty_gradients(q, k, v)
    g, mean = g.contiguous(), torch.empty_like(tau)
    inputs = (*map(with_strides, (q, k, v)), key_bias)
    sizes = (q.shape[1], q.shape[-2], k.shape[-2], scale, Score(scale * (alpha - 1), alpha - 1))
    spec = _spec(q, v, key_bias, alpha, causal)
    query_tiles, key_tiles = tiles_for("entmax.queries_backward", q, v), tiles_for("entmax.keys_backward", q, v)
    launch(queries_backward, query_tiles, query_grid(q), *inputs, out, g, tau, mean, dq, *sizes, spec=spec)
    launch(keys_backward, key_tiles, key_grid(k), *inputs, g, tau, mean, dk, dv, db, *sizes, spec=spec)
    return [dq, dk, dv, db]


def _empty_gradients(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Memory for the gradients of q, k, v and, in float32, of the key bias."""
    return [*empty_like(q, k, v), torch.empty(k.shape[:3], dtype=torch.float32, device=k.device)]


@entmax.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *unused: object) -> tuple[Tensor, Tensor]:
    return empty_outputs(q, v)


@entmax_backward.register_fake
def _(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *unused: object) -> list[Tensor]:
    return _empty_gradients(q, k, v)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.settings = inputs[4:]


def _backward(ctx: Any, g: Tensor, grad_tau: Tensor) -> tuple[Tensor | None, ...]:
    dq, dk, dv, db = torch.ops.rheoscope.entmax_backward(g, *ctx.saved_tensors, *ctx.settings)
    return dq, dk, dv, db if ctx.saved_tensors[3] is not None else None, None, None, None


entmax.register_autograd(_backward, setup_context=_save_for_backward)
