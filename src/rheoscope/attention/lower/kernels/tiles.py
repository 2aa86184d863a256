"""Building blocks of the tiled kernels: addresses, loads and stores of rows, ranges of tiles, and the launch.

A program holds one tile of queries (or keys) of one head and loops over the tiles of the other side. It processes the
tiles in which every pair is allowed first, and then those that need a mask. `@no_type_check` exempts code that Triton
compiles from the shape checker.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources

from rheoscope.attention.lower.kernels.tile_table import TileConfig, TileList

LOG2E = 1.4426950408889634
MASKED_SCORE = tl.constexpr(-1e30)
"""The score of a pair that is not allowed, lower than every other score."""

kernel = triton.jit(do_not_specialize=["M", "N", "H", "chunks", "all_x", "all_y"])
"""The decorator of a function that is launched. It is compiled once for all lengths and numbers of heads.

These sizes stay parameters of their own, because Triton specialises every integer inside a tuple.
"""


class Rows(NamedTuple):
    """A (b, h, n, d) tensor as a kernel receives it: its address and the strides of its first three axes."""

    ptr: Any
    batch_stride: Any
    head_stride: Any
    row_stride: Any


class HeadRows(NamedTuple):
    """The rows of one head inside a kernel: the address of the first one and the stride from row to row."""

    ptr: Any
    row_stride: Any


class Keys(NamedTuple):
    """The keys of one head inside a kernel: rows, values and the address of one number for each key."""

    k: Any
    v: Any
    vector: Any


def with_strides(x: Tensor) -> Rows:
    """A tensor with its strides, for a kernel."""
    b, h, n, _ = x.stride()
    return Rows(x, b, h, n)


@triton.jit
@no_type_check
def head_rows(x, head_index, H):
    """The rows of one head of `Rows`; `head_index` counts over the heads of all texts."""
    batch_offset = (head_index // H).to(tl.int64) * x.batch_stride
    return HeadRows(x.ptr + batch_offset + (head_index % H).to(tl.int64) * x.head_stride, x.row_stride)


@triton.jit
@no_type_check
def load_tile(x, rows, stride, n_rows, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """Rows of width WIDTH from address x; a masked tile is 0 beyond the last row."""
    addresses = x + rows[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    return tl.load(addresses, mask=rows[:, None] < n_rows, other=0.0) if MASKED else tl.load(addresses)


@triton.jit
@no_type_check
def load_transposed_tile(x, rows, stride, n_rows, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """The same tile as `load_tile`, transposed."""
    addresses = x + rows[None, :] * stride + tl.arange(0, WIDTH)[:, None]
    return tl.load(addresses, mask=rows[None, :] < n_rows, other=0.0) if MASKED else tl.load(addresses)


@triton.jit
@no_type_check
def load_rows(x, rows, n_rows, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """A tile of `HeadRows`."""
    return load_tile(x.ptr, rows, x.row_stride, n_rows, WIDTH, MASKED)


@triton.jit
@no_type_check
def load_transposed(x, rows, n_rows, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """A tile of `HeadRows`, transposed."""
    return load_transposed_tile(x.ptr, rows, x.row_stride, n_rows, WIDTH, MASKED)


@triton.jit
@no_type_check
def load_contiguous(x, rows, n_rows, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """A tile of contiguous rows at address x."""
    return load_tile(x, rows, WIDTH, n_rows, WIDTH, MASKED)


@triton.jit
@no_type_check
def load_vector(x, rows, n_rows, MASKED: tl.constexpr):
    """One number for each row."""
    return tl.load(x + rows, mask=rows < n_rows, other=0.0) if MASKED else tl.load(x + rows)


@triton.jit
@no_type_check
def store_rows(x, rows, n_rows, values, WIDTH: tl.constexpr):
    """Store a tile into contiguous rows, in their dtype."""
    addresses = x + rows[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(addresses, values.to(x.dtype.element_ty), mask=rows[:, None] < n_rows)


@triton.jit
@no_type_check
def zero_rows(N_ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """A tile of float32 zeros."""
    return tl.zeros([N_ROWS, WIDTH], tl.float32)


@triton.jit
@no_type_check
def zero_vector(N_ROWS: tl.constexpr):
    """A float32 zero for each row."""
    return tl.zeros([N_ROWS], tl.float32)


@triton.jit
@no_type_check
def masked_vector(N_ROWS: tl.constexpr):
    """MASKED_SCORE for each row, where a running maximum starts."""
    return tl.full([N_ROWS], MASKED_SCORE, tl.float32)


@triton.jit
@no_type_check
def key_range(start, M, N, CAUSAL: tl.constexpr, TILE: tl.constexpr):
    """The end of the keys that a tile of queries sees without a mask, and the end of all keys that it sees."""
    full_end = N
    end = N
    if CAUSAL:
        full_end = N - M + start + 1
        end = tl.minimum(N, N - M + start + TILE.BLOCK_M)
    return tl.minimum(full_end, N) // TILE.BLOCK_N * TILE.BLOCK_N, end


@triton.jit
@no_type_check
def query_range(start, M, N, CAUSAL: tl.constexpr, TILE: tl.constexpr):
    """The first query that sees a tile of keys, and the first and the last that see it without a mask."""
    first = 0
    full_start = 0
    if CAUSAL:
        first = tl.maximum(start - (N - M), 0) // TILE.BLOCK_M * TILE.BLOCK_M
        full_start = (
            (tl.maximum(start + TILE.BLOCK_N - 1 - (N - M), 0) + TILE.BLOCK_M - 1) // TILE.BLOCK_M * TILE.BLOCK_M
        )
    full_end = M // TILE.BLOCK_M * TILE.BLOCK_M
    if start + TILE.BLOCK_N > N:  # the tile extends beyond the last key, so all of it needs a mask
        full_start = tl.maximum(full_end, full_start)
    return first, full_start, tl.maximum(full_end, full_start)


@triton.jit
@no_type_check
def is_allowed(i, j, M, N, CAUSAL: tl.constexpr):
    """Whether query i may see key j, with both inside the text."""
    allowed = (i < M) & (j < N)
    if CAUSAL:
        allowed = allowed & (j <= i + N - M)
    return allowed


TOO_LARGE_CONFIGS: set[tuple[Any, TileConfig, tuple[Any, ...]]] = set()
"""Kernels with tiles and compile-time constants that did not fit this machine."""


def launch(
    kernel_function: Any,
    configs: TileList,
    grid: Callable[[TileConfig], tuple[int, int]],
    *args: Any,
    spec: tuple[Any, ...],
) -> None:
    """Run a kernel with the first tiles that fit the machine.

    The kernel receives its compile-time constants as `SPEC` and its tile sizes as `TILE`.
    """
    device_tensor = args[0]
    while isinstance(device_tensor, tuple):  # the first tensor of `Rows` or of a group of them
        device_tensor = device_tensor[0]
    for config in configs:
        if (kernel_function, config, spec) in TOO_LARGE_CONFIGS:
            continue
        try:
            with torch.cuda.device_of(device_tensor):
                kernel_function[grid(config)](
                    *args, SPEC=spec, TILE=config, num_warps=config.num_warps, num_stages=config.num_stages
                )
        except OutOfResources:
            if config is configs[-1]:
                raise
            TOO_LARGE_CONFIGS.add((kernel_function, config, spec))
        else:
            return


def query_grid(q: Tensor) -> Callable[[TileConfig], tuple[int, int]]:
    """One program for each tile of BLOCK_M rows and each head."""
    b, h, m = q.shape[:3]
    return lambda config: (triton.cdiv(m, config.BLOCK_M), b * h)


def key_grid(k: Tensor) -> Callable[[TileConfig], tuple[int, int]]:
    """One program for each tile of BLOCK_N rows and each head."""
    b, h, n = k.shape[:3]
    return lambda config: (triton.cdiv(n, config.BLOCK_N), b * h)


def dot_precision(x: Tensor) -> str:
    """The precision of matrix products; float32 uses three TF32 products, exact to its own rounding."""
    return "tf32x3" if x.dtype == torch.float32 else "tf32"


def empty_outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for the outputs in the dtype of v, and for one float32 number for each query."""
    return v.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


def empty_like(*tensors: Tensor) -> list[Tensor]:
    """Contiguous memory for a gradient of each tensor."""
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors]
