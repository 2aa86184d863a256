"""`lower/joined.py` as one pass over rows each way: outputs of near and far keys mixed, and what the near ones are given back."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 64
"""Rows that one program holds."""


@triton.jit
@no_type_check
def mixing(
    NEAR, WITHIN, FAR, LSE, SHIFT, OUT, TOTAL, SHARE, H, N, reach, nb, nh, nn, fb, fh, fn,
    E: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    b, h = (head // H).to(tl.int64), (head % H).to(tl.int64)
    n, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    there, later = n < N, (n < N) & (n >= reach)
    known = there[:, None] & (column < E)[None, :]
    line = head.to(tl.int64) * N + n
    beyond_at = head.to(tl.int64) * (N - reach) + n - reach
    within = tl.load(WITHIN + line, mask=there, other=0.0)
    beyond = tl.load(LSE + beyond_at, mask=later, other=float("-inf")) + tl.load(SHIFT + h)
    top = tl.maximum(within, beyond)
    a, c = tl.exp(within - top), tl.exp(beyond - top)
    share = c / (a + c)
    near = tl.load(NEAR + b * nb + h * nh + n[:, None] * nn + column[None, :], mask=known, other=0.0).to(tl.float32)
    far_at = FAR + b * fb + h * fh + (n - reach)[:, None] * fn + column[None, :]
    far = tl.load(far_at, mask=known & later[:, None], other=0.0).to(tl.float32)
    out = near + (far - near) * share[:, None]
    tl.store(OUT + line[:, None] * E + column[None, :], out.to(OUT.dtype.element_ty), mask=known)
    tl.store(TOTAL + line, top + tl.log(a + c), mask=there)
    tl.store(SHARE + line, share, mask=there)


@triton.jit
@no_type_check
def giving_back(
    G, NEAR, OUT, SHARE, TO_NEAR, THERE, H, N, gb, gh, gn, nb, nh, nn,
    E: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    b, h = (head // H).to(tl.int64), (head % H).to(tl.int64)
    n, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    known = (n < N)[:, None] & (column < E)[None, :]
    line = head.to(tl.int64) * N + n
    rest = 1 - tl.load(SHARE + line, mask=n < N, other=0.0)
    g = tl.load(G + b * gb + h * gh + n[:, None] * gn + column[None, :], mask=known, other=0.0).to(tl.float32)
    near = tl.load(NEAR + b * nb + h * nh + n[:, None] * nn + column[None, :], mask=known, other=0.0).to(tl.float32)
    at = line[:, None] * E + column[None, :]
    out = tl.load(OUT + at, mask=known, other=0.0).to(tl.float32)
    tl.store(TO_NEAR + at, (g * rest[:, None]).to(TO_NEAR.dtype.element_ty), mask=known)
    tl.store(THERE + line, tl.sum(g * (out - near), 1) * rest, mask=n < N)


def mix(
    near: Tensor, within: Tensor, far: Tensor, lse: Tensor, shift: Tensor, reach: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, log-sum-exp and the share of far keys, of every row."""
    b, h, n, e = near.shape
    out = torch.empty(near.shape, dtype=near.dtype, device=near.device)
    total, share = torch.empty(2, b, h, n, device=near.device).unbind(0)
    grid = b * h, triton.cdiv(n, ROWS)
    with torch.cuda.device_of(near):
        mixing[grid](
            near, within.contiguous(), far, lse.contiguous(), shift.contiguous(), out, total, share, h, n, reach,
            *near.stride()[:3], *far.stride()[:3], E=e, WIDTH=triton.next_power_of_2(e), ROWS=ROWS,
        )  # fmt: skip
    return out, total, share


def give_back(g: Tensor, near: Tensor, out: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """What the outputs of near keys are given, and what the logarithm of the far sum is."""
    b, h, n, e = near.shape
    to_near = torch.empty(near.shape, dtype=near.dtype, device=near.device)
    there = torch.empty(b, h, n, device=near.device)
    grid = b * h, triton.cdiv(n, ROWS)
    with torch.cuda.device_of(near):
        giving_back[grid](
            g, near, out, share, to_near, there, h, n,
            *g.stride()[:3], *near.stride()[:3], E=e, WIDTH=triton.next_power_of_2(e), ROWS=ROWS,
        )  # fmt: skip
    return to_near, there
