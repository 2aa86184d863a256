"""What every kernel shares: where a tile of rows lies, which keys a tile of queries meets, and how a kernel is launched.

A program holds one tile of queries (or keys) of one head and walks over tiles of the other side: first those of which
every pair is permitted, then those that need a mask. `@no_type_check` keeps the checker of shapes away from code that is
compiled for the device.
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources

LOG2E = 1.4426950408889634

kernel = triton.jit(do_not_specialize=["M", "N", "H", "chunks", "all_x", "all_y"])
"""A function that is launched: compiled once for all lengths and numbers of heads."""


@triton.jit
@no_type_check
def head(x, at, heads, batch_stride, head_stride):
    """The first row of head `at` (of all texts, counted through)."""
    return x + (at // heads).to(tl.int64) * batch_stride + (at % heads).to(tl.int64) * head_stride


@triton.jit
@no_type_check
def tile(x, rows, stride, last, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """Rows of width WIDTH; 0 beyond the last one where the tile is masked."""
    at = x + rows[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    return tl.load(at, mask=rows[:, None] < last, other=0.0) if MASKED else tl.load(at)


@triton.jit
@no_type_check
def turned(x, rows, stride, last, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """The same rows as columns."""
    at = x + rows[None, :] * stride + tl.arange(0, WIDTH)[:, None]
    return tl.load(at, mask=rows[None, :] < last, other=0.0) if MASKED else tl.load(at)


@triton.jit
@no_type_check
def line(x, rows, last, MASKED: tl.constexpr):
    """One number a row."""
    return tl.load(x + rows, mask=rows < last, other=0.0) if MASKED else tl.load(x + rows)


@triton.jit
@no_type_check
def store(x, rows, last, y, WIDTH: tl.constexpr):
    at = x + rows[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(at, y.to(x.dtype.element_ty), mask=rows[:, None] < last)


@triton.jit
@no_type_check
def keys_of(start, M, N, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Where the keys end that queries start… meet without a mask, and where those end that they meet at all."""
    whole = N
    last = N
    if CAUSAL:
        whole = N - M + start + 1
        last = tl.minimum(N, N - M + start + BLOCK_M)
    return tl.minimum(whole, N) // BLOCK_N * BLOCK_N, last


@triton.jit
@no_type_check
def queries_of(start, M, N, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The first query tile that meets keys start…, the first and the last that meet all of them without a mask."""
    first = 0
    whole = 0
    if CAUSAL:
        first = tl.maximum(start - (N - M), 0) // BLOCK_M * BLOCK_M
        whole = (tl.maximum(start + BLOCK_N - 1 - (N - M), 0) + BLOCK_M - 1) // BLOCK_M * BLOCK_M
    end = M // BLOCK_M * BLOCK_M
    if start + BLOCK_N > N:  # keys beyond the last one: every tile needs its mask
        whole = tl.maximum(end, whole)
    return first, whole, tl.maximum(end, whole)


@triton.jit
@no_type_check
def permitted(i, j, M, N, CAUSAL: tl.constexpr):
    """Whether query i (a column) may see key j (a row); both inside the text."""
    there = (i < M) & (j < N)
    if CAUSAL:
        there = there & (j <= i + N - M)
    return there


class Tiles(NamedTuple):
    """How large the tiles of a kernel are, and with how many warps and loads ahead it runs."""

    BLOCK_M: int
    BLOCK_N: int
    warps: int
    stages: int


TOO_LARGE: set[tuple[str, Tiles, tuple[Any, ...]]] = set()
"""Tiles that did not fit this machine, by kernel."""


def launch(function: Any, tiles: list[Tiles], grid: Any, *args: Any, **constants: Any) -> None:
    """Run a kernel with the first tiles that fit the machine; `grid` is a function of them."""
    kind = tuple(sorted(constants.items()))
    for one in tiles:
        if (function.__name__, one, kind) in TOO_LARGE:
            continue
        sizes = {"BLOCK_M": one.BLOCK_M, "BLOCK_N": one.BLOCK_N}
        try:
            with torch.cuda.device_of(args[0]):
                function[grid(one)](*args, **constants, **sizes, num_warps=one.warps, num_stages=one.stages)
        except OutOfResources:
            if one is tiles[-1]:
                raise
            TOO_LARGE.add((function.__name__, one, kind))
        else:
            return


def kind_of(*rows: Tensor) -> str:
    """Which tiles rows of this dtype and width take: "single" (float32), "wide" (more than 64 numbers) or "half"."""
    if rows[0].dtype == torch.float32:
        return "single"
    return "wide" if max(x.shape[-1] for x in rows) > 64 else "half"


def precision(x: Tensor) -> str:
    """How products of float32 are made: from three parts each on the tensor cores, exact to float32's own rounding."""
    return "tf32x3" if x.dtype == torch.float32 else "tf32"


def strides(*tensors: Tensor) -> list[int]:
    return [step for x in tensors for step in x.stride()[:3]]
