"""`lower/rows.py` as two kernels that read every row once: forward, and back from the gradient of the rows made."""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheoscope.attention.lower.kernel_rows import GAIN, PARTS, RowLayout

ROWS = 64
"""Rows that one program holds."""


@triton.jit
@no_type_check
def load_float_rows(x, head_offset, n, N, stride, d: tl.constexpr, WIDTH: tl.constexpr):
    """Rows n of head `at` in float32, 0 beyond row N and column d."""
    column = tl.arange(0, WIDTH)
    in_bounds = (n < N)[:, None] & (column < d)[None, :]
    return tl.load(x + head_offset + n[:, None].to(tl.int64) * stride + column[None, :], mask=in_bounds, other=0.0).to(
        tl.float32
    )


@triton.jit
@no_type_check
def row_norms(x):
    """|x| of every row, infinity where it is 0."""
    length = tl.sqrt(tl.sum(x * x, 1))
    return tl.where(length > 0, length, float("inf"))


@triton.jit
@no_type_check
def pack_kernel(
    X, Y, BIAS, H, N, xb, xh, xn, square, bias_scale, d: tl.constexpr, width: tl.constexpr,
    UNIT: tl.constexpr, COLUMNS: tl.constexpr, OWN: tl.constexpr, AT: tl.constexpr, BIASED: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, GAIN: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    head_index = tl.program_id(0)
    n = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)[None, :]
    x = load_float_rows(X, (head_index // H).to(tl.int64) * xb + (head_index % H).to(tl.int64) * xh, n, N, xn, d, WIDTH)
    if UNIT:
        x = x / row_norms(x)[:, None]
    y = x.to(Y.dtype.element_ty)
    is_bias_column = (column >= d) & (column < d + PARTS * COLUMNS)
    y = tl.where(is_bias_column, GAIN, y.to(tl.float32)).to(Y.dtype.element_ty)
    if OWN:
        row = tl.where(column < d, y.to(tl.float32), 0.0)
        z = -square * tl.sum(row * row, 1)
        if BIASED:
            z += tl.load(BIAS + (head_index % H) * N + n, mask=n < N, other=0.0)
        z *= bias_scale
        for part in tl.static_range(PARTS):
            rounded = z.to(Y.dtype.element_ty)
            y = tl.where(column == d + AT + part, rounded[:, None], y)
            z -= rounded.to(tl.float32)
    addresses = Y + (head_index.to(tl.int64) * N + n[:, None]) * width + column
    tl.store(addresses, y, mask=(n < N)[:, None] & (column < width))


@triton.jit
@no_type_check
def unpack_kernel(
    X, DY, DX, DZ, H, N, xb, xh, xn, yb, yh, yn, square, bias_scale, d: tl.constexpr,
    UNIT: tl.constexpr, OWN: tl.constexpr, AT: tl.constexpr, BIASED: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Of the columns of its own the first carries the gradient of what all three stand for."""
    head_index = tl.program_id(0)
    n = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)[None, :]
    x = load_float_rows(X, (head_index // H).to(tl.int64) * xb + (head_index % H).to(tl.int64) * xh, n, N, xn, d, WIDTH)
    dy_offset = (head_index // H).to(tl.int64) * yb + (head_index % H).to(tl.int64) * yh
    g = load_float_rows(DY, dy_offset, n, N, yn, d, WIDTH)
    y = x
    if UNIT:
        length = row_norms(x)
        y = x / length[:, None]
    if OWN:
        dz = tl.load(DY + dy_offset + n.to(tl.int64) * yn + d + AT, mask=n < N, other=0.0).to(tl.float32) * bias_scale
        g -= (2 * square * dz)[:, None] * y
        if BIASED:
            tl.store(DZ + head_index.to(tl.int64) * N + n, dz, mask=n < N)
    if UNIT:
        g = (g - y * tl.sum(y * g, 1)[:, None]) / length[:, None]
    addresses = DX + (head_index.to(tl.int64) * N + n[:, None]) * d + column
    tl.store(addresses, g.to(DX.dtype.element_ty), mask=(n < N)[:, None] & (column < d))


def pack(x: Tensor, bias: Tensor | None, layout: RowLayout, dtype: torch.dtype) -> Tensor:
    b, h, n, d = x.shape
    width = layout.width(d)
    y = torch.empty(b, h, n, width, dtype=dtype, device=x.device)
    pack_kernel[_grid(x)](
        x,
        y,
        x if bias is None else bias,
        h,
        n,
        *x.stride()[:3],
        layout.square,
        1 / (GAIN * layout.scale),
        d=d,
        width=width,
        UNIT=layout.unit_length,
        COLUMNS=layout.bias_groups,
        OWN=layout.has_bias,
        AT=_bias_offset(layout),
        BIASED=bias is not None,
        WIDTH=triton.next_power_of_2(width),
        ROWS=ROWS,
        GAIN=GAIN,
        PARTS=PARTS,
        num_warps=4,
    )
    return y


def pack_backward(x: Tensor, dy: Tensor, layout: RowLayout, has_bias: bool) -> tuple[Tensor, Tensor | None]:
    """The gradient of the rows, and that of the bias, a number a row, where it is wanted."""
    b, h, n, d = x.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dz = torch.empty(b, h, n, device=x.device) if has_bias else None
    unpack_kernel[_grid(x)](
        x, dy, dx, dx if dz is None else dz, h, n, *x.stride()[:3], *dy.stride()[:3], layout.square,
        1 / (GAIN * layout.scale), d=d, UNIT=layout.unit_length, OWN=layout.has_bias, AT=_bias_offset(layout), BIASED=has_bias,
        WIDTH=triton.next_power_of_2(d), ROWS=ROWS, num_warps=4,
    )  # fmt: skip
    return dx, dz


def _bias_offset(layout: RowLayout) -> int:
    """Where the columns of its own begin, behind the row itself."""
    return 0 if layout.is_key else PARTS


def _grid(x: Tensor) -> Any:
    return x.shape[0] * x.shape[1], triton.cdiv(x.shape[2], ROWS)
