"""Triton kernels for `lower/kernel_rows.py`: pack rows with their bias columns, and the gradient of packing.

Each kernel reads every row once.
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheoscope.attention.lower.kernels.tile_table import ROWS_PER_PROGRAM
from rheoscope.attention.lower.kernels.tiles import with_strides
from rheoscope.attention.lower.row_layout import GAIN, PARTS, RowLayout


class Spec(NamedTuple):
    """Compile-time constants of a `RowLayout`.

    The kernels read d columns of a row and write `width` columns; BLOCK is the next power of two. BIAS_OFFSET is the
    first of the bias columns of this side, counted from column d. BIASED tells whether a bias is given.
    """

    d: int
    width: int
    BLOCK: int
    UNIT: bool
    BIAS_GROUPS: int
    HAS_BIAS: bool
    BIAS_OFFSET: int
    BIASED: bool
    ROWS: int
    GAIN: float


@triton.jit
@no_type_check
def head_offset(x, head_index, H):
    """The offset of the first row of a head of `Rows`."""
    return (head_index // H).to(tl.int64) * x.batch_stride + (head_index % H).to(tl.int64) * x.head_stride


@triton.jit
@no_type_check
def load_float_rows(x, offset, n, N, d: tl.constexpr, BLOCK: tl.constexpr):
    """Rows n of the head at `offset` in float32, and 0 beyond row N and column d."""
    column = tl.arange(0, BLOCK)
    in_bounds = (n < N)[:, None] & (column < d)[None, :]
    addresses = x.ptr + offset + n[:, None].to(tl.int64) * x.row_stride + column[None, :]
    return tl.load(addresses, mask=in_bounds, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def row_norms(x):
    """|x| of every row, or infinity where it is 0."""
    length = tl.sqrt(tl.sum(x * x, 1))
    return tl.where(length > 0, length, float("inf"))


@triton.jit
@no_type_check
def pack_kernel(X, Y, BIAS, H, N, square, bias_scale, SPEC: tl.constexpr, PARTS: tl.constexpr):
    head_index = tl.program_id(0)
    n = tl.program_id(1) * SPEC.ROWS + tl.arange(0, SPEC.ROWS)
    column = tl.arange(0, SPEC.BLOCK)[None, :]
    x = load_float_rows(X, head_offset(X, head_index, H), n, N, SPEC.d, SPEC.BLOCK)
    if SPEC.UNIT:
        x = x / row_norms(x)[:, None]
    y = x.to(Y.dtype.element_ty)
    is_bias_column = (column >= SPEC.d) & (column < SPEC.d + PARTS * SPEC.BIAS_GROUPS)
    y = tl.where(is_bias_column, SPEC.GAIN, y.to(tl.float32)).to(Y.dtype.element_ty)
    if SPEC.HAS_BIAS:
        row = tl.where(column < SPEC.d, y.to(tl.float32), 0.0)
        z = -square * tl.sum(row * row, 1)
        if SPEC.BIASED:
            z += tl.load(BIAS + (head_index % H) * N + n, mask=n < N, other=0.0)
        z *= bias_scale
        for part in tl.static_range(PARTS):
            rounded = z.to(Y.dtype.element_ty)
            y = tl.where(column == SPEC.d + SPEC.BIAS_OFFSET + part, rounded[:, None], y)
            z -= rounded.to(tl.float32)
    addresses = Y + (head_index.to(tl.int64) * N + n[:, None]) * SPEC.width + column
    tl.store(addresses, y, mask=(n < N)[:, None] & (column < SPEC.width))


@triton.jit
@no_type_check
def unpack_kernel(X, DY, DX, DZ, H, N, square, bias_scale, SPEC: tl.constexpr):
    """The first bias column of this side carries the gradient of all its parts."""
    head_index = tl.program_id(0)
    n = tl.program_id(1) * SPEC.ROWS + tl.arange(0, SPEC.ROWS)
    column = tl.arange(0, SPEC.BLOCK)[None, :]
    x = load_float_rows(X, head_offset(X, head_index, H), n, N, SPEC.d, SPEC.BLOCK)
    dy_offset = head_offset(DY, head_index, H)
    g = load_float_rows(DY, dy_offset, n, N, SPEC.d, SPEC.BLOCK)
    y = x
    if SPEC.UNIT:
        length = row_norms(x)
        y = x / length[:, None]
    if SPEC.HAS_BIAS:
        dz_addresses = DY.ptr + dy_offset + n.to(tl.int64) * DY.row_stride + SPEC.d + SPEC.BIAS_OFFSET
        dz = tl.load(dz_addresses, mask=n < N, other=0.0).to(tl.float32) * bias_scale
        g -= (2 * square * dz)[:, None] * y
        if SPEC.BIASED:
            tl.store(DZ + head_index.to(tl.int64) * N + n, dz, mask=n < N)
    if SPEC.UNIT:
        g = (g - y * tl.sum(y * g, 1)[:, None]) / length[:, None]
    addresses = DX + (head_index.to(tl.int64) * N + n[:, None]) * SPEC.d + column
    tl.store(addresses, g.to(DX.dtype.element_ty), mask=(n < N)[:, None] & (column < SPEC.d))


def pack(x: Tensor, bias: Tensor | None, layout: RowLayout, dtype: torch.dtype) -> Tensor:
    """The rows x in `dtype` with the columns that `layout` adds."""
    b, h, n, d = x.shape
    width = layout.width(d)
    y = torch.empty(b, h, n, width, dtype=dtype, device=x.device)
    scales = (layout.square, 1 / (GAIN * layout.scale))
    spec = _spec(layout, d, width, triton.next_power_of_2(width), bias is not None)
    inputs = (with_strides(x), y, x if bias is None else bias, h, n, *scales)
    pack_kernel[_grid(x)](*inputs, SPEC=spec, PARTS=PARTS, num_warps=4)
    return y


def pack_backward(x: Tensor, dy: Tensor, layout: RowLayout, has_bias: bool) -> tuple[Tensor, Tensor | None]:
    """The gradient of the rows and, if there is a bias, its gradient with one number for each row."""
    b, h, n, d = x.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dz = torch.empty(b, h, n, device=x.device) if has_bias else None
    scales = (layout.square, 1 / (GAIN * layout.scale))
    spec = _spec(layout, d, d, triton.next_power_of_2(d), has_bias)
    outputs = (dx, dx if dz is None else dz)
    unpack_kernel[_grid(x)](with_strides(x), with_strides(dy), *outputs, h, n, *scales, SPEC=spec, num_warps=4)
    return dx, dz


def _spec(layout: RowLayout, d: int, width: int, block: int, biased: bool) -> Spec:
    bias_offset = 0 if layout.is_key else PARTS
    sides = (layout.unit_length, layout.bias_groups, layout.has_bias, bias_offset, biased)
    return Spec(d, width, block, *sides, ROWS_PER_PROGRAM, GAIN)


def _grid(x: Tensor) -> Any:
    return x.shape[0] * x.shape[1], triton.cdiv(x.shape[2], ROWS_PER_PROGRAM)
