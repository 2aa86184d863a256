"""`lower/past.py` as two kernels: the sums of every chunk, then running sums inside each.

Backward the sums run from the end: dx_j = alpha g_j - gamma sum_{i >= j} g_i / i, each term divided before it is added.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 64


@triton.jit
@no_type_check
def terms(X, head, chunk, N, D: tl.constexpr, AHEAD: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """The rows of a chunk in float32, divided by their place where sums run from the end; where they lie; what is there."""
    n = chunk * CHUNK + tl.arange(0, CHUNK)
    column = tl.arange(0, WIDTH)
    at = (head.to(tl.int64) * N + n[:, None]) * D + column[None, :]
    there = (n < N)[:, None] & (column < D)[None, :]
    x = tl.load(X + at, mask=there, other=0.0).to(tl.float32)
    each = x
    if AHEAD:
        each = x / (n + 1).to(tl.float32)[:, None]
    return x, each, at, there


@triton.jit
@no_type_check
def add_up(X, SUMS, N, D: tl.constexpr, AHEAD: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    head, chunk = tl.program_id(0), tl.program_id(1)
    each = terms(X, head, chunk, N, D, AHEAD, WIDTH, CHUNK)[1]
    column = tl.arange(0, WIDTH)
    to = SUMS + (head.to(tl.int64) * tl.num_programs(1) + chunk) * D + column
    tl.store(to, tl.sum(each, 0), mask=column < D)


@triton.jit
@no_type_check
def go_on(
    X, Y, BEFORE, OUT, N, alpha, gamma,
    D: tl.constexpr, ADDED: tl.constexpr, AHEAD: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    head, chunk = tl.program_id(0), tl.program_id(1)
    x, each, at, there = terms(X, head, chunk, N, D, AHEAD, WIDTH, CHUNK)
    column = tl.arange(0, WIDTH)
    before = tl.load(BEFORE + (head.to(tl.int64) * tl.num_programs(1) + chunk) * D + column, mask=column < D, other=0.0)
    if AHEAD:
        mean = before[None, :] + tl.cumsum(each, 0, reverse=True)
    else:
        n = chunk * CHUNK + tl.arange(0, CHUNK)
        mean = (before[None, :] + tl.cumsum(each, 0)) / (n + 1).to(tl.float32)[:, None]
    out = alpha * x - gamma * mean
    if ADDED:
        out += tl.load(Y + at, mask=there, other=0.0).to(tl.float32)
    tl.store(OUT + at, out.to(OUT.dtype.element_ty), mask=there)


def mixed(x: Tensor, y: Tensor | None, alpha: float, gamma: float, ahead: bool) -> Tensor:
    """alpha x + y - gamma (running mean of x), or the same from the end; x and y in one piece."""
    b, h, n, d = x.shape
    grid = b * h, triton.cdiv(n, CHUNK)
    sums = torch.empty(*grid, d, device=x.device)
    fixed = {"D": d, "AHEAD": ahead, "WIDTH": triton.next_power_of_2(d), "CHUNK": CHUNK}
    add_up[grid](x, sums, n, **fixed)
    before = (sums.flip(1).cumsum(1).flip(1) if ahead else sums.cumsum(1)) - sums
    out = torch.empty_like(x)
    go_on[grid](x, x if y is None else y, before, out, n, alpha, gamma, ADDED=y is not None, **fixed)
    return out
