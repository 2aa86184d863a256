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
    TileConfig,
    dot_precision,
    head_ptr,
    is_allowed,
    kernel,
    key_range,
    launch,
    load_rows,
    load_transposed,
    load_vector,
    query_range,
    store_rows,
    strides,
    tile_key,
)

FORWARD_TILES = {
    "half": [TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)],
    "wide": [TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)],
    "single": [TileConfig(64, 32, 4, 2), TileConfig(32, 32, 4, 1)],
}
"""Tiles by the kind of rows, the fastest first (measured on an H200)."""
KEYS_TILES = {
    "half": [TileConfig(64, 64, 4, 3), TileConfig(32, 64, 4, 2)],
    "wide": [TileConfig(32, 64, 4, 3), TileConfig(32, 32, 4, 2)],
    "single": [TileConfig(32, 64, 4, 1), TileConfig(16, 32, 4, 1)],
}
QUERIES_TILES = {
    "half": [TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)],
    "wide": [TileConfig(64, 64, 4, 2), TileConfig(64, 32, 4, 2)],
    "single": [TileConfig(64, 32, 4, 1), TileConfig(32, 16, 4, 1)],
}
LANE_STEPS = tl.constexpr(8)
"""Newton's steps on the largest scores of the lanes."""
MAX_STEPS = tl.constexpr(24)
"""Newton's steps over all keys at most; three are usual."""
MASKED_SCORE = tl.constexpr(-1e30)
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
def newton_step(power_sum, lower_sum, R: tl.constexpr):
    """How far Newton's method moves tau, from sum u^r and sum u^{r-1}."""
    if R == 1.0:
        norm_power = tl.full(power_sum.shape, 1.0, tl.float32)
    elif R == 2.0:
        norm_power = tl.sqrt(power_sum)
    else:
        norm_power = power(power_sum, 1.0 - 1.0 / R)
    return tl.where(lower_sum > 0, (power_sum - norm_power) / tl.where(lower_sum > 0, lower_sum, 1.0), 0.0)


@triton.jit
@no_type_check
def scaled_scores(
    q, k, kb, sk, i, j, M, N, a, bias_scale,
    CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """x = (alpha - 1) s of queries i and keys j; far below where a pair is not permitted."""
    x = tl.dot(q, load_transposed(k, j, sk, N, D, MASKED), input_precision=PRECISION) * a
    if BIAS:
        x += load_vector(kb, j, N, MASKED)[None, :] * bias_scale
    if MASKED:
        x = tl.where(is_allowed(i[:, None], j[None, :], M, N, CAUSAL), x, MASKED_SCORE)
    return x


@triton.jit
@no_type_check
def lane_max(
    lane_top, q, k, kb, sk, i, low, high, M, N, a, bias_scale,
    CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        lane_top = tl.maximum(
            lane_top, scaled_scores(q, k, kb, sk, i, j, M, N, a, bias_scale, CAUSAL, BIAS, PRECISION, D, MASKED)
        )
    return lane_top


@triton.jit
@no_type_check
def newton_sums(
    power_sum, lower_sum, tau, q, k, kb, sk, i, low, high, M, N, a, bias_scale,
    R: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """sum u^r and sum u^{r-1} over keys low..high."""
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        x = scaled_scores(q, k, kb, sk, i, j, M, N, a, bias_scale, CAUSAL, BIAS, PRECISION, D, MASKED)
        u = tl.maximum(x - tau[:, None], 0.0)
        lower_power = power(u, R - 1.0)
        power_sum += tl.sum(lower_power * u, 1)
        lower_sum += tl.sum(lower_power, 1)
    return power_sum, lower_sum


@triton.jit
@no_type_check
def forward_pass(
    acc, weight_sum, tau, q, k, v, kb, sk, sv, i, low, high, M, N, a, bias_scale,
    R: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """acc + sum_j p_ij v_j, and total + sum_j p_ij."""
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        x = scaled_scores(q, k, kb, sk, i, j, M, N, a, bias_scale, CAUSAL, BIAS, PRECISION, D, MASKED)
        p = power(tl.maximum(x - tau[:, None], 0.0), R)
        values = load_rows(v, j, sv, N, E, MASKED)
        acc = tl.dot(p.to(values.dtype), values, acc, input_precision=PRECISION)
        weight_sum += tl.sum(p, 1)
    return acc, weight_sum


@kernel
@no_type_check
def forward(
    Q, K, V, KB, OUT, TAU, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, a, bias_scale, tolerance,
    R: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # the longest rows first
    i = start + tl.arange(0, BLOCK_M)
    q = load_rows(head_ptr(Q, head_index, H, qb0, qh0), i, qm, M, D, True)
    k, v = head_ptr(K, head_index, H, kb0, kh0), head_ptr(V, head_index, H, vb0, vh0)
    kb = KB
    if BIAS:
        kb = KB + head_index.to(tl.int64) * N
    full_end, end = key_range(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    lane_top = tl.full([BLOCK_M, BLOCK_N], MASKED_SCORE, tl.float32)
    lane_top = lane_max(
        lane_top, q, k, kb, kn, i, 0, full_end, M, N, a, bias_scale, CAUSAL, BIAS, PRECISION, D, BLOCK_N, False
    )
    lane_top = lane_max(
        lane_top, q, k, kb, kn, i, full_end, end, M, N, a, bias_scale, CAUSAL, BIAS, PRECISION, D, BLOCK_N, True
    )
    tau = tl.max(lane_top, 1) - 1.0
    for _ in range(LANE_STEPS):
        u = tl.maximum(lane_top - tau[:, None], 0.0)
        lower_power = power(u, R - 1.0)
        tau += tl.maximum(newton_step(tl.sum(lower_power * u, 1), tl.sum(lower_power, 1), R), 0.0)
    steps, error = 0, tolerance + 1.0
    while (steps < MAX_STEPS) & (error > tolerance):
        power_sum, lower_sum = tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M], tl.float32)
        power_sum, lower_sum = newton_sums(power_sum, lower_sum, tau, q, k, kb, kn, i, 0, full_end, M, N, a, bias_scale,
                            R, CAUSAL, BIAS, PRECISION, D, BLOCK_N, False)  # fmt: skip
        power_sum, lower_sum = newton_sums(power_sum, lower_sum, tau, q, k, kb, kn, i, full_end, end, M, N, a, bias_scale,
                            R, CAUSAL, BIAS, PRECISION, D, BLOCK_N, True)  # fmt: skip
        tau += newton_step(power_sum, lower_sum, R)
        error = tl.max(tl.where(i < M, tl.abs(power_sum - 1.0), 0.0), 0)
        steps += 1
    acc, power_sum = tl.zeros([BLOCK_M, E], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    acc, power_sum = forward_pass(acc, power_sum, tau, q, k, v, kb, kn, vn, i, 0, full_end, M, N, a, bias_scale,
                         R, CAUSAL, BIAS, PRECISION, D, E, BLOCK_N, False)  # fmt: skip
    acc, power_sum = forward_pass(acc, power_sum, tau, q, k, v, kb, kn, vn, i, full_end, end, M, N, a, bias_scale,
                         R, CAUSAL, BIAS, PRECISION, D, E, BLOCK_N, True)  # fmt: skip
    store_rows(OUT + head_index.to(tl.int64) * M * E, i, M, acc / tl.where(power_sum > 0, power_sum, 1.0)[:, None], E)
    tl.store(TAU + head_index.to(tl.int64) * M + i, tau, mask=i < M)


@triton.jit
@no_type_check
def keys_pass(
    dk, dv, db, k, v, kb, q, g, tau, mean, sq, j, low, high, M, N, a, bias_scale,
    R: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BLOCK_M: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """dk, dv and the key bias's gradient, summed over queries low..high."""
    for start in range(low, high, BLOCK_M):
        i = start + tl.arange(0, BLOCK_M)
        queries = load_rows(q, i, sq, M, D, MASKED)
        x = tl.dot(k, tl.trans(queries), input_precision=PRECISION) * a
        if BIAS:
            x += kb[:, None] * bias_scale
        u = tl.maximum(x - load_vector(tau, i, M, MASKED)[None, :], 0.0)
        if MASKED:
            u = tl.where(is_allowed(i[None, :], j[:, None], M, N, CAUSAL), u, 0.0)
        lower_power = power(u, R - 1.0)
        gradient = load_rows(g, i, E, M, E, MASKED)
        dv = tl.dot((lower_power * u).to(gradient.dtype), gradient, dv, input_precision=PRECISION)
        dp = tl.dot(v, tl.trans(gradient), input_precision=PRECISION)
        ds = lower_power * (dp - load_vector(mean, i, M, MASKED)[None, :])
        dk = tl.dot(ds.to(queries.dtype), queries, dk, input_precision=PRECISION)
        if BIAS:
            db += tl.sum(ds, 1)
    return dk, dv, db


@kernel
@no_type_check
def keys_backward(
    Q, K, V, KB, G, TAU, MEAN, DK, DV, DB, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, scale, a, bias_scale,
    R: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head_index = tl.program_id(1)
    start = tl.program_id(0) * BLOCK_N
    j = start + tl.arange(0, BLOCK_N)
    k = load_rows(head_ptr(K, head_index, H, kb0, kh0), j, kn, N, D, True)
    v = load_rows(head_ptr(V, head_index, H, vb0, vh0), j, vn, N, E, True)
    q, g = head_ptr(Q, head_index, H, qb0, qh0), G + head_index.to(tl.int64) * M * E
    tau, mean = TAU + head_index.to(tl.int64) * M, MEAN + head_index.to(tl.int64) * M
    kb = j.to(tl.float32)
    if BIAS:
        kb = load_vector(KB + head_index.to(tl.int64) * N, j, N, True)
    first, full_start, full_end = query_range(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    dk, dv = tl.zeros([BLOCK_N, D], tl.float32), tl.zeros([BLOCK_N, E], tl.float32)
    db = tl.zeros([BLOCK_N], tl.float32)
    dk, dv, db = keys_pass(dk, dv, db, k, v, kb, q, g, tau, mean, qm, j, first, tl.minimum(full_start, M), M, N, a,
                           bias_scale, R, CAUSAL, BIAS, PRECISION, D, E, BLOCK_M, True)  # fmt: skip
    dk, dv, db = keys_pass(dk, dv, db, k, v, kb, q, g, tau, mean, qm, j, full_start, full_end, M, N, a,
                           bias_scale, R, CAUSAL, BIAS, PRECISION, D, E, BLOCK_M, False)  # fmt: skip
    dk, dv, db = keys_pass(dk, dv, db, k, v, kb, q, g, tau, mean, qm, j, full_end, M, M, N, a,
                           bias_scale, R, CAUSAL, BIAS, PRECISION, D, E, BLOCK_M, True)  # fmt: skip
    store_rows(DK + head_index.to(tl.int64) * N * D, j, N, dk * scale, D)
    store_rows(DV + head_index.to(tl.int64) * N * E, j, N, dv, E)
    if BIAS:
        tl.store(DB + head_index.to(tl.int64) * N + j, db, mask=j < N)


@triton.jit
@no_type_check
def queries_pass(
    sum_gdk, sum_gk, sum_gd, sum_g, tau, centre, q, g, k, v, kb, sk, sv, i, low, high, M, N, a, bias_scale,
    R: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """sum_j g d k_j, sum_j g k_j, sum_j g d and sum_j g, with d = dp - centre, over keys low..high."""
    for start in range(low, high, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        keys = load_rows(k, j, sk, N, D, MASKED)
        x = tl.dot(q, tl.trans(keys), input_precision=PRECISION) * a
        if BIAS:
            x += load_vector(kb, j, N, MASKED)[None, :] * bias_scale
        u = tl.maximum(x - tau[:, None], 0.0)
        if MASKED:
            u = tl.where(is_allowed(i[:, None], j[None, :], M, N, CAUSAL), u, 0.0)
        lower_power = power(u, R - 1.0)
        gd = lower_power * (
            tl.dot(g, load_transposed(v, j, sv, N, E, MASKED), input_precision=PRECISION) - centre[:, None]
        )
        sum_gdk = tl.dot(gd.to(keys.dtype), keys, sum_gdk, input_precision=PRECISION)
        sum_gk = tl.dot(lower_power.to(keys.dtype), keys, sum_gk, input_precision=PRECISION)
        sum_gd += tl.sum(gd, 1)
        sum_g += tl.sum(lower_power, 1)
    return sum_gdk, sum_gk, sum_gd, sum_g


@kernel
@no_type_check
def queries_backward(
    Q, K, V, KB, OUT, G, TAU, MEAN, DQ, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, scale, a, bias_scale,
    R: tl.constexpr, CAUSAL: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dq, and <g, dp>/<g, 1> of every row, which `to_keys` needs."""
    head_index = tl.program_id(1)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    i = start + tl.arange(0, BLOCK_M)
    q = load_rows(head_ptr(Q, head_index, H, qb0, qh0), i, qm, M, D, True)
    g = load_rows(G + head_index.to(tl.int64) * M * E, i, E, M, E, True)
    out = load_rows(OUT + head_index.to(tl.int64) * M * E, i, E, M, E, True)
    centre = tl.sum(out.to(tl.float32) * g.to(tl.float32), 1)  # near the mean, so that sums of d stay small
    k, v = head_ptr(K, head_index, H, kb0, kh0), head_ptr(V, head_index, H, vb0, vh0)
    tau, kb = load_vector(TAU + head_index.to(tl.int64) * M, i, M, True), KB
    if BIAS:
        kb = KB + head_index.to(tl.int64) * N
    full_end, end = key_range(start, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    sum_gdk, sum_gk = tl.zeros([BLOCK_M, D], tl.float32), tl.zeros([BLOCK_M, D], tl.float32)
    sum_gd, sum_g = tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    sum_gdk, sum_gk, sum_gd, sum_g = queries_pass(
        sum_gdk, sum_gk, sum_gd, sum_g, tau, centre, q, g, k, v, kb, kn, vn, i, 0, full_end, M, N, a, bias_scale,
        R, CAUSAL, BIAS, PRECISION, D, E, BLOCK_N, False)  # fmt: skip
    sum_gdk, sum_gk, sum_gd, sum_g = queries_pass(
        sum_gdk, sum_gk, sum_gd, sum_g, tau, centre, q, g, k, v, kb, kn, vn, i, full_end, end, M, N, a, bias_scale,
        R, CAUSAL, BIAS, PRECISION, D, E, BLOCK_N, True)  # fmt: skip
    mean = sum_gd / tl.where(sum_g > 0, sum_g, 1.0)
    store_rows(DQ + head_index.to(tl.int64) * M * D, i, M, (sum_gdk - sum_gk * mean[:, None]) * scale, D)
    tl.store(MEAN + head_index.to(tl.int64) * M + i, mean + centre, mask=i < M)


def _constants(q: Tensor, v: Tensor, key_bias: Tensor | None, alpha: float, causal: bool) -> dict[str, Any]:
    return {
        "R": 1.0 / (alpha - 1.0),
        "CAUSAL": causal,
        "BIAS": key_bias is not None,
        "PRECISION": dot_precision(q),
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
    out, tau = _empty_outputs(q, v)
    launch(
        forward,
        FORWARD_TILES[tile_key(q, v)],
        lambda config: (triton.cdiv(m, config.BLOCK_M), b * h),
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
    (b, h, m), n, key, g = q.shape[:3], k.shape[-2], tile_key(q, v), g.contiguous()
    dq, dk, dv, db = _empty_gradients(q, k, v)
    mean, launch_args = torch.empty_like(tau), (*strides(q, k, v), h, m, n, scale, scale * (alpha - 1), alpha - 1)
    constants = _constants(q, v, key_bias, alpha, causal)
    launch(
        queries_backward,
        QUERIES_TILES[key],
        lambda config: (triton.cdiv(m, config.BLOCK_M), b * h),
        *(q, k, v, key_bias, out, g, tau, mean, dq, *launch_args),
        **constants,
    )
    launch(
        keys_backward,
        KEYS_TILES[key],
        lambda config: (triton.cdiv(n, config.BLOCK_N), b * h),
        *(q, k, v, key_bias, g, tau, mean, dk, dv, db, *launch_args),
        **constants,
    )
    return [dq, dk, dv, db]


def _empty_outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return v.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


def _empty_gradients(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    gradients = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)]
    return [*gradients, torch.empty(k.shape[:3], dtype=torch.float32, device=k.device)]


@entmax.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *unused: object) -> tuple[Tensor, Tensor]:
    return _empty_outputs(q, v)


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
