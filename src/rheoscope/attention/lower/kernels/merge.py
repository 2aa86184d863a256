"""Triton kernels for `lower/merged_softmax.py`: mix the outputs of near and far keys, and the gradient of the mixture.

Each kernel makes one pass over the rows. `torch.compile` traces these launches, so their strides are plain numbers.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheoscope.attention.lower.kernels.tile_table import ROWS_PER_PROGRAM


@triton.jit
@no_type_check
def mix_kernel(
    NEAR_OUT, NEAR_LSE, FAR_OUT, FAR_LSE, FAR_BIAS, OUT, LSE_OUT, FRACTION, H, N, reach, nb, nh, nn, fb, fh, fn,
    E: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    head_index = tl.program_id(0)
    b, h = (head_index // H).to(tl.int64), (head_index % H).to(tl.int64)
    n, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    in_bounds, has_far = n < N, (n < N) & (n >= reach)
    in_tile = in_bounds[:, None] & (column < E)[None, :]
    row_offsets = head_index.to(tl.int64) * N + n
    far_rows = head_index.to(tl.int64) * (N - reach) + n - reach
    near_lse = tl.load(NEAR_LSE + row_offsets, mask=in_bounds, other=0.0)
    far_lse = tl.load(FAR_LSE + far_rows, mask=has_far, other=float("-inf")) + tl.load(FAR_BIAS + h)
    max_lse = tl.maximum(near_lse, far_lse)
    near_exp, far_exp = tl.exp(near_lse - max_lse), tl.exp(far_lse - max_lse)
    far_fraction = far_exp / (near_exp + far_exp)
    near_out = tl.load(NEAR_OUT + b * nb + h * nh + n[:, None] * nn + column[None, :], mask=in_tile, other=0.0).to(
        tl.float32
    )
    far_addresses = FAR_OUT + b * fb + h * fh + (n - reach)[:, None] * fn + column[None, :]
    far_out = tl.load(far_addresses, mask=in_tile & has_far[:, None], other=0.0).to(tl.float32)
    out = near_out + (far_out - near_out) * far_fraction[:, None]
    tl.store(OUT + row_offsets[:, None] * E + column[None, :], out.to(OUT.dtype.element_ty), mask=in_tile)
    tl.store(LSE_OUT + row_offsets, max_lse + tl.log(near_exp + far_exp), mask=in_bounds)
    tl.store(FRACTION + row_offsets, far_fraction, mask=in_bounds)


@triton.jit
@no_type_check
def mix_backward_kernel(
    G, NEAR_OUT, OUT, FRACTION, GRAD_NEAR, GRAD_FAR_LSE, H, N, gb, gh, gn, nb, nh, nn,
    E: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    head_index = tl.program_id(0)
    b, h = (head_index // H).to(tl.int64), (head_index % H).to(tl.int64)
    n, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    in_tile = (n < N)[:, None] & (column < E)[None, :]
    row_offsets = head_index.to(tl.int64) * N + n
    near_fraction = 1 - tl.load(FRACTION + row_offsets, mask=n < N, other=0.0)
    g = tl.load(G + b * gb + h * gh + n[:, None] * gn + column[None, :], mask=in_tile, other=0.0).to(tl.float32)
    near_out = tl.load(NEAR_OUT + b * nb + h * nh + n[:, None] * nn + column[None, :], mask=in_tile, other=0.0).to(
        tl.float32
    )
    offsets = row_offsets[:, None] * E + column[None, :]
    out = tl.load(OUT + offsets, mask=in_tile, other=0.0).to(tl.float32)
    tl.store(GRAD_NEAR + offsets, (g * near_fraction[:, None]).to(GRAD_NEAR.dtype.element_ty), mask=in_tile)
    tl.store(GRAD_FAR_LSE + row_offsets, tl.sum(g * (out - near_out), 1) * near_fraction, mask=n < N)


def mix_near_and_far(
    near_out: Tensor, near_lse: Tensor, far_out: Tensor, far_lse: Tensor, far_bias: Tensor, reach: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs, the log-sum-exp and the fraction of weight on far keys, for every row."""
    b, h, n, e = near_out.shape
    out = torch.empty(near_out.shape, dtype=near_out.dtype, device=near_out.device)
    lse, far_fraction = torch.empty(2, b, h, n, device=near_out.device).unbind(0)
    grid = b * h, triton.cdiv(n, ROWS_PER_PROGRAM)
    with torch.cuda.device_of(near_out):
        mix_kernel[grid](
            near_out, near_lse.contiguous(), far_out, far_lse.contiguous(), far_bias.contiguous(), out, lse, far_fraction, h, n, reach,
            *near_out.stride()[:3], *far_out.stride()[:3], E=e, WIDTH=triton.next_power_of_2(e), ROWS=ROWS_PER_PROGRAM,
        )  # fmt: skip
    return out, lse, far_fraction


def mix_backward(g: Tensor, near_out: Tensor, out: Tensor, far_fraction: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the near outputs and of the log-sum-exp of the far keys."""
    b, h, n, e = near_out.shape
    grad_near = torch.empty(near_out.shape, dtype=near_out.dtype, device=near_out.device)
    grad_far_lse = torch.empty(b, h, n, device=near_out.device)
    grid = b * h, triton.cdiv(n, ROWS_PER_PROGRAM)
    with torch.cuda.device_of(near_out):
        mix_backward_kernel[grid](
            g, near_out, out, far_fraction, grad_near, grad_far_lse, h, n,
            *g.stride()[:3], *near_out.stride()[:3], E=e, WIDTH=triton.next_power_of_2(e), ROWS=ROWS_PER_PROGRAM,
        )  # fmt: skip
    return grad_near, grad_far_lse
