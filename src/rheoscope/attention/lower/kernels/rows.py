"""`lower/rows.py` as two kernels that read every row once: forward, and back from the gradient of the rows made."""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheoscope.attention.lower.kernel_rows import GAIN, PARTS, Made

ROWS = 64
"""Rows that one program holds."""


@triton.jit
@no_type_check
def laid(x, at, n, N, stride, d: tl.constexpr, WIDTH: tl.constexpr):
    """Rows n of head `at` in float32, 0 beyond row N and column d."""
    column = tl.arange(0, WIDTH)
    there = (n < N)[:, None] & (column < d)[None, :]
    return tl.load(x + at + n[:, None].to(tl.int64) * stride + column[None, :], mask=there, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def lengths(x):
    """|x| of every row, infinity where it is 0."""
    length = tl.sqrt(tl.sum(x * x, 1))
    return tl.where(length > 0, length, float("inf"))


@triton.jit
@no_type_check
def make(
    X, Y, BIAS, H, N, xb, xh, xn, square, per, d: tl.constexpr, width: tl.constexpr,
    UNIT: tl.constexpr, COLUMNS: tl.constexpr, OWN: tl.constexpr, AT: tl.constexpr, BIASED: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, GAIN: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    n = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)[None, :]
    x = laid(X, (head // H).to(tl.int64) * xb + (head % H).to(tl.int64) * xh, n, N, xn, d, WIDTH)
    if UNIT:
        x = x / lengths(x)[:, None]
    y = x.to(Y.dtype.element_ty)
    more = (column >= d) & (column < d + PARTS * COLUMNS)
    y = tl.where(more, GAIN, y.to(tl.float32)).to(Y.dtype.element_ty)
    if OWN:
        known = tl.where(column < d, y.to(tl.float32), 0.0)
        z = -square * tl.sum(known * known, 1)
        if BIASED:
            z += tl.load(BIAS + (head % H) * N + n, mask=n < N, other=0.0)
        z *= per
        for part in tl.static_range(PARTS):
            rounded = z.to(Y.dtype.element_ty)
            y = tl.where(column == d + AT + part, rounded[:, None], y)
            z -= rounded.to(tl.float32)
    to = Y + (head.to(tl.int64) * N + n[:, None]) * width + column
    tl.store(to, y, mask=(n < N)[:, None] & (column < width))


@triton.jit
@no_type_check
def unmake(
    X, DY, DX, DZ, H, N, xb, xh, xn, yb, yh, yn, square, per, d: tl.constexpr,
    UNIT: tl.constexpr, OWN: tl.constexpr, AT: tl.constexpr, BIASED: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Of the columns of its own the first carries the gradient of what all three stand for."""
    head = tl.program_id(0)
    n = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)[None, :]
    x = laid(X, (head // H).to(tl.int64) * xb + (head % H).to(tl.int64) * xh, n, N, xn, d, WIDTH)
    at = (head // H).to(tl.int64) * yb + (head % H).to(tl.int64) * yh
    g = laid(DY, at, n, N, yn, d, WIDTH)
    y = x
    if UNIT:
        length = lengths(x)
        y = x / length[:, None]
    if OWN:
        dz = tl.load(DY + at + n.to(tl.int64) * yn + d + AT, mask=n < N, other=0.0).to(tl.float32) * per
        g -= (2 * square * dz)[:, None] * y
        if BIASED:
            tl.store(DZ + head.to(tl.int64) * N + n, dz, mask=n < N)
    if UNIT:
        g = (g - y * tl.sum(y * g, 1)[:, None]) / length[:, None]
    to = DX + (head.to(tl.int64) * N + n[:, None]) * d + column
    tl.store(to, g.to(DX.dtype.element_ty), mask=(n < N)[:, None] & (column < d))


def forward(x: Tensor, bias: Tensor | None, made: Made, dtype: torch.dtype) -> Tensor:
    b, h, n, d = x.shape
    width = made.width(d)
    y = torch.empty(b, h, n, width, dtype=dtype, device=x.device)
    make[_grid(x)](
        x, y, x if bias is None else bias, h, n, *x.stride()[:3], made.square, 1 / (GAIN * made.scale),
        d=d, width=width,        UNIT=made.unit, COLUMNS=made.columns, OWN=made.own, AT=_at(made), BIASED=bias is not None,
        WIDTH=triton.next_power_of_2(width), ROWS=ROWS, GAIN=GAIN, PARTS=PARTS, num_warps=4,
    )  # fmt: skip
    return y


def backward(x: Tensor, dy: Tensor, made: Made, biased: bool) -> tuple[Tensor, Tensor | None]:
    """The gradient of the rows, and that of the bias, a number a row, where it is wanted."""
    b, h, n, d = x.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dz = torch.empty(b, h, n, device=x.device) if biased else None
    unmake[_grid(x)](
        x, dy, dx, dx if dz is None else dz, h, n, *x.stride()[:3], *dy.stride()[:3], made.square,
        1 / (GAIN * made.scale), d=d, UNIT=made.unit, OWN=made.own, AT=_at(made), BIASED=biased,
        WIDTH=triton.next_power_of_2(d), ROWS=ROWS, num_warps=4,
    )  # fmt: skip
    return dx, dz


def _at(made: Made) -> int:
    """Where the columns of its own begin, behind the row itself."""
    return 0 if made.keys else PARTS


def _grid(x: Tensor) -> Any:
    return x.shape[0] * x.shape[1], triton.cdiv(x.shape[2], ROWS)
