"""A Triton kernel for the updates z W of all heads: their norms, and their inner products with another displacement y.

    length = √(z G zᵀ), G = W Wᵀ      product = ⟨z, projected⟩, projected = y Wᵀ

A program processes some tokens of one head. It reads z once, in the layout of the forward pass, and keeps products with G
in registers.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

ROWS = 128
"""Tokens of one program."""


@triton.jit
@no_type_check
def head_dots_kernel(
    Z, COMMON, GRAM, PROJECTED, LENGTH, PRODUCT, n_rows, n, heads, width,
    BIASED: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head, e = tl.program_id(1), tl.arange(0, WIDTH)
    in_bounds = (row < n_rows)[:, None] & (e < width)[None, :]
    offset = row[:, None] * (heads * width) + head * width + e[None, :]
    z = tl.load(Z + offset, mask=in_bounds, other=0.0)
    if BIASED:
        z = z - tl.load(COMMON + head * width + e, mask=e < width, other=0.0)[None, :]
    gram_mask = (e < width)[:, None] & (e < width)[None, :]
    gram = tl.load(GRAM + (head * width + e[:, None]) * width + e[None, :], mask=gram_mask, other=0.0)
    z32 = z.to(tl.float32)
    length = tl.sqrt(tl.maximum(tl.sum(tl.dot(z, gram) * z32, 1), 0.0))
    product = tl.sum(z32 * tl.load(PROJECTED + offset, mask=in_bounds, other=0.0).to(tl.float32), 1)
    out_offset = (row // n * heads + head) * n + row % n
    tl.store(LENGTH + out_offset, length, mask=row < n_rows)
    tl.store(PRODUCT + out_offset, product, mask=row < n_rows)


def head_dots(
    z: Float[Tensor, "b n he"],
    common: Float[Tensor, "h e"] | None,
    gram: Float[Tensor, "h e e"],
    projected: Float[Tensor, "b n he"],
    length: Float[Tensor, "b h n"],
    product: Float[Tensor, "b h n"],
) -> None:
    """Write the norms and products of z minus `common` to `length` and `product`, in float32."""
    b, n, _ = z.shape
    heads, width, _ = gram.shape
    inputs = (x.contiguous() for x in (z, gram if common is None else common, gram, projected))
    with torch.cuda.device_of(z):
        head_dots_kernel[triton.cdiv(b * n, ROWS), heads](
            *inputs, length, product, b * n, n, heads, width,
            BIASED=common is not None, WIDTH=max(16, triton.next_power_of_2(width)), ROWS=ROWS, num_warps=4,
        )  # fmt: skip
