"""Triton kernels for `lower/running_mean.py`: the sums of every chunk, then running sums inside each chunk.

The backward pass sums from the end, dx_j = alpha g_j - gamma sum_{i >= j} g_i / i. It divides each term before adding it.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheoscope.attention.lower.kernels.tile_table import CHUNK


@triton.jit
@no_type_check
def load_terms(X, head_index, chunk, N, D: tl.constexpr, AHEAD: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """The rows of a chunk in float32, the terms to add, their offsets and whether they are in bounds.

    AHEAD sums from the end, so it divides each row by its position (from 1) first.
    """
    n = chunk * CHUNK + tl.arange(0, CHUNK)
    column = tl.arange(0, WIDTH)
    offsets = (head_index.to(tl.int64) * N + n[:, None]) * D + column[None, :]
    in_bounds = (n < N)[:, None] & (column < D)[None, :]
    x = tl.load(X + offsets, mask=in_bounds, other=0.0).to(tl.float32)
    addends = x
    if AHEAD:
        addends = x / (n + 1).to(tl.float32)[:, None]
    return x, addends, offsets, in_bounds


@triton.jit
@no_type_check
def chunk_sums(X, SUMS, N, D: tl.constexpr, AHEAD: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    head_index, chunk = tl.program_id(0), tl.program_id(1)
    addends = load_terms(X, head_index, chunk, N, D, AHEAD, WIDTH, CHUNK)[1]
    column = tl.arange(0, WIDTH)
    addresses = SUMS + (head_index.to(tl.int64) * tl.num_programs(1) + chunk) * D + column
    tl.store(addresses, tl.sum(addends, 0), mask=column < D)


@triton.jit
@no_type_check
def running_mean(
    X, Y, PREFIX, OUT, N, alpha, gamma,
    D: tl.constexpr, ADDED: tl.constexpr, AHEAD: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    head_index, chunk = tl.program_id(0), tl.program_id(1)
    x, addends, offsets, in_bounds = load_terms(X, head_index, chunk, N, D, AHEAD, WIDTH, CHUNK)
    column = tl.arange(0, WIDTH)
    prefix = tl.load(
        PREFIX + (head_index.to(tl.int64) * tl.num_programs(1) + chunk) * D + column, mask=column < D, other=0.0
    )
    if AHEAD:
        mean = prefix[None, :] + tl.cumsum(addends, 0, reverse=True)
    else:
        n = chunk * CHUNK + tl.arange(0, CHUNK)
        mean = (prefix[None, :] + tl.cumsum(addends, 0)) / (n + 1).to(tl.float32)[:, None]
    out = alpha * x - gamma * mean
    if ADDED:
        out += tl.load(Y + offsets, mask=in_bounds, other=0.0).to(tl.float32)
    tl.store(OUT + offsets, out.to(OUT.dtype.element_ty), mask=in_bounds)


def subtract_running_mean(x: Tensor, y: Tensor | None, alpha: float, gamma: float, reverse: bool) -> Tensor:
    """alpha x + y - gamma (running mean of x), or the same from the end; x and y are contiguous."""
    b, h, n, d = x.shape
    grid = b * h, triton.cdiv(n, CHUNK)
    sums = torch.empty(*grid, d, device=x.device)
    constants = {"D": d, "AHEAD": reverse, "WIDTH": triton.next_power_of_2(d), "CHUNK": CHUNK}
    chunk_sums[grid](x, sums, n, **constants)
    prefix = (sums.flip(1).cumsum(1).flip(1) if reverse else sums.cumsum(1)) - sums
    out = torch.empty_like(x)
    running_mean[grid](x, x if y is None else y, prefix, out, n, alpha, gamma, ADDED=y is not None, **constants)
    return out
