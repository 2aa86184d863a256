"""A Triton kernel that copies half-precision numbers to float32, several per thread.

The conversion copy of torch moves one number at a time.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_NUMEL = 8192
"""Numbers that one program copies."""


@triton.jit
@no_type_check
def copy_kernel(X, OUT, numel, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(OUT + offsets, tl.load(X + offsets, mask=offsets < numel, other=0.0).to(tl.float32), mask=offsets < numel)


def copy_to_float32(x: Tensor, out: Tensor) -> None:
    """Copy x to `out`; both are contiguous."""
    with torch.cuda.device_of(x):
        copy_kernel[(triton.cdiv(x.numel(), BLOCK_NUMEL),)](x, out, x.numel(), BLOCK=BLOCK_NUMEL, num_warps=8)
