"""Linear attention by chunks: inside a chunk by its triangle, before it by the running sum of phi(k) v.

    o_i = phi(q_i) S_i / phi(q_i) z_i,   S_i = sum_{j <= i} phi(k_j)^T v_j,   z_i = sum_{j <= i} phi(k_j)

Backward, with w_i = do_i / (phi(q_i) z_i), e_i = -do_i.o_i / (phi(q_i) z_i), and sums T, t of phi(q)^T w and e phi(q) over
the queries that follow:

    dphi(q_i) = S_i w_i + e_i z_i,   dphi(k_j) = T_j v_j + t_j,   dv_j = phi(k_j) T_j

Features and sums are float32, whatever the inputs are.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheoscope.attention.lower.kernels.tiles import (
    TileConfig,
    head_ptr,
    kernel,
    launch,
    load_rows,
    load_vector,
    store_rows,
    strides,
)

CHUNK = 64
"""Tokens whose pairs are looked at one by one."""
SUM_TILES = [TileConfig(CHUNK, CHUNK, 4, 1)]
CHUNK_TILES = [TileConfig(CHUNK, CHUNK, 8, 1)]


@triton.jit
@no_type_check
def feature_map(x, valid, ELU: tl.constexpr):
    """phi of rows that are there, else 0: elu(x) + 1, or x as it is."""
    x = x.to(tl.float32)
    if ELU:
        x = tl.where(x > 0, x + 1.0, tl.exp(tl.minimum(x, 0.0)))
    return tl.where(valid[:, None], x, 0.0)


@triton.jit
@no_type_check
def load_matrix(x, D: tl.constexpr, E: tl.constexpr):
    return tl.load(x + tl.arange(0, D)[:, None] * E + tl.arange(0, E)[None, :])


@triton.jit
@no_type_check
def store_sums(S, Z, head_index, chunk, chunks, s, z, D: tl.constexpr, E: tl.constexpr):
    """The sums of one chunk, in the place where a running sum over chunks will find them."""
    slot = head_index.to(tl.int64) * chunks + chunk
    tl.store(S + slot * D * E + tl.arange(0, D)[:, None] * E + tl.arange(0, E)[None, :], s)
    tl.store(Z + slot * D + tl.arange(0, D), z)


@kernel
@no_type_check
def key_sums(
    K, V, S, Z, kb0, kh0, kn, vb0, vh0, vn, H, N,
    ELU: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """sum phi(k)^T v and sum phi(k) of one chunk."""
    head_index, j = tl.program_id(1), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = feature_map(load_rows(head_ptr(K, head_index, H, kb0, kh0), j, kn, N, D, True), j < N, ELU)
    v = load_rows(head_ptr(V, head_index, H, vb0, vh0), j, vn, N, E, True).to(tl.float32)
    s = tl.dot(tl.trans(k), v, input_precision=PRECISION)
    store_sums(S, Z, head_index, tl.program_id(0), tl.num_programs(0), s, tl.sum(k, 0), D, E)


@kernel
@no_type_check
def forward(
    Q, K, V, S, Z, OUT, DEN, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, chunks,
    ELU: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head_index, chunk = tl.program_id(1), tl.program_id(0)
    i = chunk * BLOCK_M + tl.arange(0, BLOCK_M)
    q = feature_map(load_rows(head_ptr(Q, head_index, H, qb0, qh0), i, qm, M, D, True), i < M, ELU)
    state_index = head_index.to(tl.int64) * chunks + chunks - 1
    acc, den = tl.zeros([BLOCK_M, E], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    if CAUSAL:
        k = feature_map(load_rows(head_ptr(K, head_index, H, kb0, kh0), i, kn, N, D, True), i < N, ELU)
        v = load_rows(head_ptr(V, head_index, H, vb0, vh0), i, vn, N, E, True).to(tl.float32)
        a = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        a = tl.where(i[:, None] >= i[None, :], a, 0.0)
        acc, den = tl.dot(a, v, acc, input_precision=PRECISION), tl.sum(a, 1)
        state_index = head_index.to(tl.int64) * chunks + chunk - 1
    if (not CAUSAL) or chunk > 0:
        acc = tl.dot(q, load_matrix(S + state_index * D * E, D, E), acc, input_precision=PRECISION)
        den += tl.sum(q * tl.load(Z + state_index * D + tl.arange(0, D))[None, :], 1)
    den = tl.where(den == 0, 1.0, den)
    store_rows(OUT + head_index.to(tl.int64) * M * E, i, M, acc / den[:, None], E)
    tl.store(DEN + head_index.to(tl.int64) * M + i, den, mask=i < M)


@triton.jit
@no_type_check
def scaled_gradient(G, OUT, DEN, head_index, i, M, E: tl.constexpr):
    """w = do / den and e = -do.o / den."""
    g = load_rows(G + head_index.to(tl.int64) * M * E, i, E, M, E, True).to(tl.float32)
    o = load_rows(OUT + head_index.to(tl.int64) * M * E, i, E, M, E, True).to(tl.float32)
    den = tl.where(i < M, load_vector(DEN + head_index.to(tl.int64) * M, i, M, True), 1.0)
    return g / den[:, None], -tl.sum(g * o, 1) / den


@kernel
@no_type_check
def query_sums(
    Q, G, OUT, DEN, T, U, qb0, qh0, qm, H, M,
    ELU: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """sum phi(q)^T w and sum e phi(q) of one chunk; the last chunk comes first, since keys feel the queries that follow."""
    head_index, i = tl.program_id(1), tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    q = feature_map(load_rows(head_ptr(Q, head_index, H, qb0, qh0), i, qm, M, D, True), i < M, ELU)
    w, e = scaled_gradient(G, OUT, DEN, head_index, i, M, E)
    t = tl.dot(tl.trans(q), w, input_precision=PRECISION)
    slot = tl.num_programs(0) - 1 - tl.program_id(0)
    store_sums(T, U, head_index, slot, tl.num_programs(0), t, tl.sum(q * e[:, None], 0), D, E)


@kernel
@no_type_check
def queries_backward(
    Q, K, V, S, Z, G, OUT, DEN, DQ, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, chunks,
    ELU: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head_index, chunk = tl.program_id(1), tl.program_id(0)
    i = chunk * BLOCK_M + tl.arange(0, BLOCK_M)
    w, e = scaled_gradient(G, OUT, DEN, head_index, i, M, E)
    state_index = head_index.to(tl.int64) * chunks + chunks - 1
    dq = tl.zeros([BLOCK_M, D], tl.float32)
    if CAUSAL:
        k = feature_map(load_rows(head_ptr(K, head_index, H, kb0, kh0), i, kn, N, D, True), i < N, ELU)
        v = load_rows(head_ptr(V, head_index, H, vb0, vh0), i, vn, N, E, True).to(tl.float32)
        grad_weights = tl.dot(w, tl.trans(v), input_precision=PRECISION) + e[:, None]
        dq = tl.dot(tl.where(i[:, None] >= i[None, :], grad_weights, 0.0), k, dq, input_precision=PRECISION)
        state_index = head_index.to(tl.int64) * chunks + chunk - 1
    if (not CAUSAL) or chunk > 0:
        dq = tl.dot(w, tl.trans(load_matrix(S + state_index * D * E, D, E)), dq, input_precision=PRECISION)
        dq += e[:, None] * tl.load(Z + state_index * D + tl.arange(0, D))[None, :]
    if ELU:
        dq = dq * tl.minimum(
            feature_map(load_rows(head_ptr(Q, head_index, H, qb0, qh0), i, qm, M, D, True), i < M, True), 1.0
        )
    store_rows(DQ + head_index.to(tl.int64) * M * D, i, M, dq, D)


@kernel
@no_type_check
def keys_backward(
    Q, K, V, T, U, G, OUT, DEN, DK, DV, qb0, qh0, qm, kb0, kh0, kn, vb0, vh0, vn, H, M, N, chunks,
    ELU: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head_index, chunk = tl.program_id(1), tl.program_id(0)
    j = chunk * BLOCK_N + tl.arange(0, BLOCK_N)
    k = feature_map(load_rows(head_ptr(K, head_index, H, kb0, kh0), j, kn, N, D, True), j < N, ELU)
    v = load_rows(head_ptr(V, head_index, H, vb0, vh0), j, vn, N, E, True).to(tl.float32)
    state_index = head_index.to(tl.int64) * chunks + chunks - 1
    dk, dv = tl.zeros([BLOCK_N, D], tl.float32), tl.zeros([BLOCK_N, E], tl.float32)
    if CAUSAL:
        q = feature_map(load_rows(head_ptr(Q, head_index, H, qb0, qh0), j, qm, M, D, True), j < M, ELU)
        w, e = scaled_gradient(G, OUT, DEN, head_index, j, M, E)
        is_later = j[None, :] >= j[:, None]
        a = tl.where(is_later, tl.dot(k, tl.trans(q), input_precision=PRECISION), 0.0)
        dv = tl.dot(a, w, dv, input_precision=PRECISION)
        grad_weights = tl.where(is_later, tl.dot(v, tl.trans(w), input_precision=PRECISION) + e[None, :], 0.0)
        dk = tl.dot(grad_weights, q, dk, input_precision=PRECISION)
        state_index = head_index.to(tl.int64) * chunks + chunks - 2 - chunk
    if (not CAUSAL) or chunk < chunks - 1:
        t = load_matrix(T + state_index * D * E, D, E)
        dv = tl.dot(k, t, dv, input_precision=PRECISION)
        dk = tl.dot(v, tl.trans(t), dk, input_precision=PRECISION)
        dk += tl.load(U + state_index * D + tl.arange(0, D))[None, :]
    if ELU:
        dk = dk * tl.minimum(k, 1.0)
    store_rows(DK + head_index.to(tl.int64) * N * D, j, N, dk, D)
    store_rows(DV + head_index.to(tl.int64) * N * E, j, N, dv, E)


def _constants(q: Tensor, v: Tensor, elu: bool) -> dict[str, Any]:
    """Features are float32: TF32 has three bits more than bfloat16, but none more than float16, which takes three parts."""
    product_precision = "tf32" if q.dtype == torch.bfloat16 else "tf32x3"
    return {"ELU": elu, "PRECISION": product_precision, "D": q.shape[-1], "E": v.shape[-1]}


def _grid(x: Tensor) -> Any:
    return lambda config: (triton.cdiv(x.shape[-2], CHUNK), x.shape[0] * x.shape[1])


def _running_sums(
    sum_kernel: Any, x: Tensor, inputs: tuple[Any, ...], constants: dict[str, Any]
) -> tuple[Tensor, Tensor, int]:
    """The sums of every chunk of x by a kernel `function`, added up over chunks, and how many chunks there are."""
    chunks = triton.cdiv(x.shape[-2], CHUNK)
    s, z = (
        x.new_empty(*x.shape[:2], chunks, *sum_shape, dtype=torch.float32)
        for sum_shape in ((constants["D"], constants["E"]), (constants["D"],))
    )
    launch(sum_kernel, SUM_TILES, _grid(x), *inputs[:-1], s, z, *inputs[-1], x.shape[1], x.shape[-2], **constants)
    return s.cumsum(2), z.cumsum(2), chunks


@torch.library.custom_op(
    "rheoscope::linear",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, bool elu, bool causal) -> (Tensor, Tensor)",
)
def linear(q: Tensor, k: Tensor, v: Tensor, elu: bool, causal: bool) -> tuple[Tensor, Tensor]:
    """Outputs, and what every row was divided by."""
    out, den = _empty_outputs(q, v)
    constants = _constants(q, v, elu)
    s, z, chunks = _running_sums(key_sums, k, (k, v, strides(k, v)), constants)
    launch_args = (*strides(q, k, v), q.shape[1], q.shape[-2], k.shape[-2], chunks)
    launch(forward, CHUNK_TILES, _grid(q), q, k, v, s, z, out, den, *launch_args, CAUSAL=causal, **constants)
    return out, den


@torch.library.custom_op(
    "rheoscope::linear_backward",
    mutates_args=(),
    schema="(Tensor g, Tensor q, Tensor k, Tensor v, Tensor out, Tensor den, bool elu, bool causal) -> Tensor[]",
)
def linear_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, den: Tensor, elu: bool, causal: bool
) -> list[Tensor]:
    """The gradients of q, k and v."""
    g, constants, (dq, dk, dv) = g.contiguous(), _constants(q, v, elu), _empty_like(q, k, v)
    launch_args = (*strides(q, k, v), q.shape[1], q.shape[-2], k.shape[-2])
    s, z, chunks = _running_sums(key_sums, k, (k, v, strides(k, v)), constants)
    launch(
        queries_backward,
        CHUNK_TILES,
        _grid(q),
        q,
        k,
        v,
        s,
        z,
        g,
        out,
        den,
        dq,
        *launch_args,
        chunks,
        CAUSAL=causal,
        **constants,
    )
    t, u, chunks = _running_sums(query_sums, q, (q, g, out, den, strides(q)), constants)
    launch(
        keys_backward,
        CHUNK_TILES,
        _grid(k),
        q,
        k,
        v,
        t,
        u,
        g,
        out,
        den,
        dk,
        dv,
        *launch_args,
        chunks,
        CAUSAL=causal,
        **constants,
    )
    return [dq, dk, dv]


def _empty_outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return v.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


def _empty_like(*tensors: Tensor) -> list[Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors]


@linear.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, elu: bool, causal: bool) -> tuple[Tensor, Tensor]:
    return _empty_outputs(q, v)


@linear_backward.register_fake
def _(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *unused: object) -> list[Tensor]:
    return _empty_like(q, k, v)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.settings = inputs[3:]


def _backward(ctx: Any, g: Tensor, grad_den: Tensor) -> tuple[Tensor | None, ...]:
    dq, dk, dv = torch.ops.rheoscope.linear_backward(g, *ctx.saved_tensors, *ctx.settings)
    return dq, dk, dv, None, None


linear.register_autograd(_backward, setup_context=_save_for_backward)
