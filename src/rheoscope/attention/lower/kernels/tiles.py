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
def head_ptr(x, head_index, n_heads, batch_stride, head_stride):
    """The first row of head `at` (of all texts, counted through)."""
    return x + (head_index // n_heads).to(tl.int64) * batch_stride + (head_index % n_heads).to(tl.int64) * head_stride


@triton.jit
@no_type_check
def load_rows(x, rows, stride, n_rows, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """Rows of width WIDTH; 0 beyond the last one where the tile is masked."""
    addresses = x + rows[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    return tl.load(addresses, mask=rows[:, None] < n_rows, other=0.0) if MASKED else tl.load(addresses)


@triton.jit
@no_type_check
def load_transposed(x, rows, stride, n_rows, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """The same rows as columns."""
    addresses = x + rows[None, :] * stride + tl.arange(0, WIDTH)[:, None]
    return tl.load(addresses, mask=rows[None, :] < n_rows, other=0.0) if MASKED else tl.load(addresses)


@triton.jit
@no_type_check
def load_vector(x, rows, n_rows, MASKED: tl.constexpr):
    """One number a row."""
    return tl.load(x + rows, mask=rows < n_rows, other=0.0) if MASKED else tl.load(x + rows)


@triton.jit
@no_type_check
def store_rows(x, rows, n_rows, values, WIDTH: tl.constexpr):
    addresses = x + rows[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(addresses, values.to(x.dtype.element_ty), mask=rows[:, None] < n_rows)


@triton.jit
@no_type_check
def key_range(start, M, N, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Where the keys end that queries start… meet without a mask, and where those end that they meet at all."""
    full_end = N
    end = N
    if CAUSAL:
        full_end = N - M + start + 1
        end = tl.minimum(N, N - M + start + BLOCK_M)
    return tl.minimum(full_end, N) // BLOCK_N * BLOCK_N, end


@triton.jit
@no_type_check
def query_range(start, M, N, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The first query tile that meets keys start…, the first and the last that meet all of them without a mask."""
    first = 0
    full_start = 0
    if CAUSAL:
        first = tl.maximum(start - (N - M), 0) // BLOCK_M * BLOCK_M
        full_start = (tl.maximum(start + BLOCK_N - 1 - (N - M), 0) + BLOCK_M - 1) // BLOCK_M * BLOCK_M
    full_end = M // BLOCK_M * BLOCK_M
    if start + BLOCK_N > N:  # keys beyond the last one: every tile needs its mask
        full_start = tl.maximum(full_end, full_start)
    return first, full_start, tl.maximum(full_end, full_start)


@triton.jit
@no_type_check
def is_allowed(i, j, M, N, CAUSAL: tl.constexpr):
    """Whether query i (a column) may see key j (a row); both inside the text."""
    allowed = (i < M) & (j < N)
    if CAUSAL:
        allowed = allowed & (j <= i + N - M)
    return allowed


class TileConfig(NamedTuple):
    """How large the tiles of a kernel are, and with how many warps and loads ahead it runs."""

    BLOCK_M: int
    BLOCK_N: int
    num_warps: int
    num_stages: int


TOO_LARGE_CONFIGS: set[tuple[str, TileConfig, tuple[Any, ...]]] = set()
"""Tiles that did not fit this machine, by kernel."""


def launch(kernel_function: Any, configs: list[TileConfig], grid: Any, *args: Any, **constants: Any) -> None:
    """Run a kernel with the first tiles that fit the machine; `grid` is a function of them."""
    constants_key = tuple(sorted(constants.items()))
    for config in configs:
        if (kernel_function.__name__, config, constants_key) in TOO_LARGE_CONFIGS:
            continue
        block_sizes = {"BLOCK_M": config.BLOCK_M, "BLOCK_N": config.BLOCK_N}
        try:
            with torch.cuda.device_of(args[0]):
                kernel_function[grid(config)](
                    *args, **constants, **block_sizes, num_warps=config.num_warps, num_stages=config.num_stages
                )
        except OutOfResources:
            if config is configs[-1]:
                raise
            TOO_LARGE_CONFIGS.add((kernel_function.__name__, config, constants_key))
        else:
            return


def tile_key(*rows: Tensor) -> str:
    """Which tiles rows of this dtype and width take: "single" (float32), "wide" (more than 64 numbers) or "half"."""
    if rows[0].dtype == torch.float32:
        return "single"
    return "wide" if max(x.shape[-1] for x in rows) > 64 else "half"


def dot_precision(x: Tensor) -> str:
    """How products of float32 are made: from three parts each on the tensor cores, exact to float32's own rounding."""
    return "tf32x3" if x.dtype == torch.float32 else "tf32"


def strides(*tensors: Tensor) -> list[int]:
    return [stride for x in tensors for stride in x.stride()[:3]]
