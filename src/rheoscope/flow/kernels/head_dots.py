"""What every head does to every token, from what it gives: its length, and how far it goes along another displacement.

    length = √(z G zᵀ), G = W Wᵀ      along = ⟨z, seen⟩, seen = y Wᵀ       of z W, for all heads side by side

Some tokens and a head to a program: z is read once, where the forward pass left it, and products with G stay in registers.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

ROWS = 128
"""Tokens of a program."""


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
    """Both of z less what is `common` to all tokens, in float32, written to `length` and `along`."""
    b, n, _ = z.shape
    heads, width, _ = gram.shape
    inputs = (x.contiguous() for x in (z, gram if common is None else common, gram, projected))
    with torch.cuda.device_of(z):
        head_dots_kernel[triton.cdiv(b * n, ROWS), heads](
            *inputs, length, product, b * n, n, heads, width,
            BIASED=common is not None, WIDTH=max(16, triton.next_power_of_2(width)), ROWS=ROWS, num_warps=4,
        )  # fmt: skip
