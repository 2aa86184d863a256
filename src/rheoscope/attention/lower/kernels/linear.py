"""Triton kernels for linear attention in chunks: pairs inside a chunk, running sums of phi(k) v over earlier chunks.

    o_i = phi(q_i) S_i / phi(q_i) z_i,   S_i = sum_{j <= i} phi(k_j)^T v_j,   z_i = sum_{j <= i} phi(k_j)

Backward, let w_i = do_i / (phi(q_i) z_i) and e_i = -do_i.o_i / (phi(q_i) z_i). T and t are the sums of phi(q)^T w and
e phi(q) over the queries that follow.

    dphi(q_i) = S_i w_i + e_i z_i,   dphi(k_j) = T_j v_j + t_j,   dv_j = phi(k_j) T_j

Features and sums are float32 for inputs of any dtype.
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheoscope.attention.lower.kernels.tile_table import CHUNK, tiles_for
from rheoscope.attention.lower.kernels.tiles import (
    empty_like,
    empty_outputs,
    head_rows,
    kernel,
    launch,
    load_contiguous,
    load_rows,
    load_vector,
    query_grid,
    store_rows,
    with_strides,
    zero_rows,
    zero_vector,
)


class Spec(NamedTuple):
    """Compile-time constants: phi is elu(x) + 1 or the identity, D and E are the widths of keys and values."""

    ELU: bool
    CAUSAL: bool
    PRECISION: str
    D: int
    E: int


@triton.jit
@no_type_check
def feature_map(x, valid, ELU: tl.constexpr):
    """phi(x) of valid rows, and 0 elsewhere; phi is elu(x) + 1 or the identity."""
    x = x.to(tl.float32)
    if ELU:
        x = tl.where(x > 0, x + 1.0, tl.exp(tl.minimum(x, 0.0)))
    return tl.where(valid[:, None], x, 0.0)


@triton.jit
@no_type_check
def load_matrix(x, D: tl.constexpr, E: tl.constexpr):
    """A contiguous D x E matrix."""
    return tl.load(x + tl.arange(0, D)[:, None] * E + tl.arange(0, E)[None, :])


@triton.jit
@no_type_check
def store_sums(S, Z, head_index, chunk, chunks, s, z, D: tl.constexpr, E: tl.constexpr):
    """Store the sums of one chunk for the running sum over chunks."""
    slot = head_index.to(tl.int64) * chunks + chunk
    tl.store(S + slot * D * E + tl.arange(0, D)[:, None] * E + tl.arange(0, E)[None, :], s)
    tl.store(Z + slot * D + tl.arange(0, D), z)


@kernel
@no_type_check
def key_sums(K, V, S, Z, H, N, SPEC: tl.constexpr, TILE: tl.constexpr):
    """sum phi(k)^T v and sum phi(k) of one chunk."""
    head_index, j = tl.program_id(1), tl.program_id(0) * TILE.BLOCK_N + tl.arange(0, TILE.BLOCK_N)
    k = feature_map(load_rows(head_rows(K, head_index, H), j, N, SPEC.D, True), j < N, SPEC.ELU)
    v = load_rows(head_rows(V, head_index, H), j, N, SPEC.E, True).to(tl.float32)
    s = tl.dot(tl.trans(k), v, input_precision=SPEC.PRECISION)
    store_sums(S, Z, head_index, tl.program_id(0), tl.num_programs(0), s, tl.sum(k, 0), SPEC.D, SPEC.E)


@kernel
@no_type_check
def forward(Q, K, V, S, Z, OUT, DEN, H, M, N, chunks, SPEC: tl.constexpr, TILE: tl.constexpr):
    head_index, chunk = tl.program_id(1), tl.program_id(0)
    i = chunk * TILE.BLOCK_M + tl.arange(0, TILE.BLOCK_M)
    q = feature_map(load_rows(head_rows(Q, head_index, H), i, M, SPEC.D, True), i < M, SPEC.ELU)
    state_index = head_index.to(tl.int64) * chunks + chunks - 1
    acc, den = zero_rows(TILE.BLOCK_M, SPEC.E), zero_vector(TILE.BLOCK_M)
    if SPEC.CAUSAL:
        k = feature_map(load_rows(head_rows(K, head_index, H), i, N, SPEC.D, True), i < N, SPEC.ELU)
        v = load_rows(head_rows(V, head_index, H), i, N, SPEC.E, True).to(tl.float32)
        a = tl.dot(q, tl.trans(k), input_precision=SPEC.PRECISION)
        a = tl.where(i[:, None] >= i[None, :], a, 0.0)
        acc, den = tl.dot(a, v, acc, input_precision=SPEC.PRECISION), tl.sum(a, 1)
        state_index = head_index.to(tl.int64) * chunks + chunk - 1
    if (not SPEC.CAUSAL) or chunk > 0:
        acc = tl.dot(
            q, load_matrix(S + state_index * SPEC.D * SPEC.E, SPEC.D, SPEC.E), acc, input_precision=SPEC.PRECISION
        )
        den += tl.sum(q * tl.load(Z + state_index * SPEC.D + tl.arange(0, SPEC.D))[None, :], 1)
    den = tl.where(den == 0, 1.0, den)
    store_rows(OUT + head_index.to(tl.int64) * M * SPEC.E, i, M, acc / den[:, None], SPEC.E)
    tl.store(DEN + head_index.to(tl.int64) * M + i, den, mask=i < M)


@triton.jit
@no_type_check
def scaled_gradient(G, OUT, DEN, head_index, i, M, E: tl.constexpr):
    """w = do / den and e = -do.o / den."""
    g = load_contiguous(G + head_index.to(tl.int64) * M * E, i, M, E, True).to(tl.float32)
    o = load_contiguous(OUT + head_index.to(tl.int64) * M * E, i, M, E, True).to(tl.float32)
    den = tl.where(i < M, load_vector(DEN + head_index.to(tl.int64) * M, i, M, True), 1.0)
    return g / den[:, None], -tl.sum(g * o, 1) / den


@kernel
@no_type_check
def query_sums(Q, G, OUT, DEN, T, U, H, M, SPEC: tl.constexpr, TILE: tl.constexpr):
    """sum phi(q)^T w and sum e phi(q) of one chunk, stored last chunk first because later queries affect a key."""
    head_index, i = tl.program_id(1), tl.program_id(0) * TILE.BLOCK_M + tl.arange(0, TILE.BLOCK_M)
    q = feature_map(load_rows(head_rows(Q, head_index, H), i, M, SPEC.D, True), i < M, SPEC.ELU)
    w, e = scaled_gradient(G, OUT, DEN, head_index, i, M, SPEC.E)
    t = tl.dot(tl.trans(q), w, input_precision=SPEC.PRECISION)
    slot = tl.num_programs(0) - 1 - tl.program_id(0)
    store_sums(T, U, head_index, slot, tl.num_programs(0), t, tl.sum(q * e[:, None], 0), SPEC.D, SPEC.E)


@kernel
@no_type_check
def queries_backward(Q, K, V, S, Z, G, OUT, DEN, DQ, H, M, N, chunks, SPEC: tl.constexpr, TILE: tl.constexpr):
    head_index, chunk = tl.program_id(1), tl.program_id(0)
    i = chunk * TILE.BLOCK_M + tl.arange(0, TILE.BLOCK_M)
    w, e = scaled_gradient(G, OUT, DEN, head_index, i, M, SPEC.E)
    state_index = head_index.to(tl.int64) * chunks + chunks - 1
    dq = zero_rows(TILE.BLOCK_M, SPEC.D)
    if SPEC.CAUSAL:
        k = feature_map(load_rows(head_rows(K, head_index, H), i, N, SPEC.D, True), i < N, SPEC.ELU)
        v = load_rows(head_rows(V, head_index, H), i, N, SPEC.E, True).to(tl.float32)
        grad_weights = tl.dot(w, tl.trans(v), input_precision=SPEC.PRECISION) + e[:, None]
        dq = tl.dot(tl.where(i[:, None] >= i[None, :], grad_weights, 0.0), k, dq, input_precision=SPEC.PRECISION)
        state_index = head_index.to(tl.int64) * chunks + chunk - 1
    if (not SPEC.CAUSAL) or chunk > 0:
        dq = tl.dot(
            w,
            tl.trans(load_matrix(S + state_index * SPEC.D * SPEC.E, SPEC.D, SPEC.E)),
            dq,
            input_precision=SPEC.PRECISION,
        )
        dq += e[:, None] * tl.load(Z + state_index * SPEC.D + tl.arange(0, SPEC.D))[None, :]
    if SPEC.ELU:
        q = load_rows(head_rows(Q, head_index, H), i, M, SPEC.D, True)
        dq = dq * tl.minimum(feature_map(q, i < M, True), 1.0)
    store_rows(DQ + head_index.to(tl.int64) * M * SPEC.D, i, M, dq, SPEC.D)


@kernel
@no_type_check
def keys_backward(Q, K, V, T, U, G, OUT, DEN, DK, DV, H, M, N, chunks, SPEC: tl.constexpr, TILE: tl.constexpr):
    head_index, chunk = tl.program_id(1), tl.program_id(0)
    j = chunk * TILE.BLOCK_N + tl.arange(0, TILE.BLOCK_N)
    k = feature_map(load_rows(head_rows(K, head_index, H), j, N, SPEC.D, True), j < N, SPEC.ELU)
    v = load_rows(head_rows(V, head_index, H), j, N, SPEC.E, True).to(tl.float32)
    state_index = head_index.to(tl.int64) * chunks + chunks - 1
    dk, dv = zero_rows(TILE.BLOCK_N, SPEC.D), zero_rows(TILE.BLOCK_N, SPEC.E)
    if SPEC.CAUSAL:
        q = feature_map(load_rows(head_rows(Q, head_index, H), j, M, SPEC.D, True), j < M, SPEC.ELU)
        w, e = scaled_gradient(G, OUT, DEN, head_index, j, M, SPEC.E)
        is_later = j[None, :] >= j[:, None]
        a = tl.where(is_later, tl.dot(k, tl.trans(q), input_precision=SPEC.PRECISION), 0.0)
        dv = tl.dot(a, w, dv, input_precision=SPEC.PRECISION)
        grad_weights = tl.where(is_later, tl.dot(v, tl.trans(w), input_precision=SPEC.PRECISION) + e[None, :], 0.0)
        dk = tl.dot(grad_weights, q, dk, input_precision=SPEC.PRECISION)
        state_index = head_index.to(tl.int64) * chunks + chunks - 2 - chunk
    if (not SPEC.CAUSAL) or chunk < chunks - 1:
        t = load_matrix(T + state_index * SPEC.D * SPEC.E, SPEC.D, SPEC.E)
        dv = tl.dot(k, t, dv, input_precision=SPEC.PRECISION)
        dk = tl.dot(v, tl.trans(t), dk, input_precision=SPEC.PRECISION)
        dk += tl.load(U + state_index * SPEC.D + tl.arange(0, SPEC.D))[None, :]
    if SPEC.ELU:
        dk = dk * tl.minimum(k, 1.0)
    store_rows(DK + head_index.to(tl.int64) * N * SPEC.D, j, N, dk, SPEC.D)
    store_rows(DV + head_index.to(tl.int64) * N * SPEC.E, j, N, dv, SPEC.E)


def _spec(q: Tensor, v: Tensor, elu: bool, causal: bool) -> Spec:
    """TF32 is more precise than bfloat16 but not than float16, which therefore takes three TF32 products."""
    product_precision = "tf32" if q.dtype == torch.bfloat16 else "tf32x3"
    return Spec(elu, causal, product_precision, q.shape[-1], v.shape[-1])


def _running_sums(
    name: str, sum_kernel: Any, x: Tensor, inputs: tuple[Any, ...], spec: Spec
) -> tuple[Tensor, Tensor, int]:
    """The sums of every chunk of x, accumulated over chunks, and the number of chunks."""
    chunks = triton.cdiv(x.shape[-2], CHUNK)
    s, z = (
        x.new_empty(*x.shape[:2], chunks, *sum_shape, dtype=torch.float32)
        for sum_shape in ((spec.D, spec.E), (spec.D,))
    )
    sum_spec = spec._replace(CAUSAL=False)  # sums of a chunk are the same with every mask: one compiled kernel
    launch(sum_kernel, tiles_for(name, x), query_grid(x), *inputs, s, z, x.shape[1], x.shape[-2], spec=sum_spec)
    return s.cumsum(2), z.cumsum(2), chunks


@torch.library.custom_op(
    "rheoscope::linear",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, bool elu, bool causal) -> (Tensor, Tensor)",
)
def linear(q: Tensor, k: Tensor, v: Tensor, elu: bool, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention outputs, and the denominator of every row."""
    out, den = empty_outputs(q, v)
    rows, spec = tuple(map(with_strides, (q, k, v))), _spec(q, v, elu, causal)
    s, z, chunks = _running_sums("linear.key_sums", key_sums, k, rows[1:], spec)
    sizes = (q.shape[1], q.shape[-2], k.shape[-2], chunks)
    launch(forward, tiles_for("linear.forward", q), query_grid(q), *rows, s, z, out, den, *sizes, spec=spec)
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
    g, spec, (dq, dk, dv) = g.contiguous(), _spec(q, v, elu, causal), empty_like(q, k, v)
    rows, sizes = tuple(map(with_strides, (q, k, v))), (q.shape[1], q.shape[-2], k.shape[-2])
    query_tiles, key_tiles = tiles_for("linear.queries_backward", q), tiles_for("linear.keys_backward", q)
    s, z, chunks = _running_sums("linear.key_sums", key_sums, k, rows[1:], spec)
    launch(queries_backward, query_tiles, query_grid(q), *rows, s, z, g, out, den, dq, *sizes, chunks, spec=spec)
    t, u, chunks = _running_sums("linear.query_sums", query_sums, q, (rows[0], g, out, den), spec)
    launch(keys_backward, key_tiles, query_grid(k), *rows, t, u, g, out, den, dk, dv, *sizes, chunks, spec=spec)
    return [dq, dk, dv]


@linear.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, elu: bool, causal: bool) -> tuple[Tensor, Tensor]:
    return empty_outputs(q, v)


@linear_backward.register_fake
def _(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *unused: object) -> list[Tensor]:
    return empty_like(q, k, v)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.settings = inputs[3:]


def _backward(ctx: Any, g: Tensor, grad_den: Tensor) -> tuple[Tensor | None, ...]:
    dq, dk, dv = torch.ops.rheoscope.linear_backward(g, *ctx.saved_tensors, *ctx.settings)
    return dq, dk, dv, None, None


linear.register_autograd(_backward, setup_context=_save_for_backward)
