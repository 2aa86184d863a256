"""A Triton kernel that adds a sink to finished attention: o sigmoid(lse - sink) in place, and the new log-sum-exp.

`torch.compile` traces this launch, so its strides are plain numbers.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheoscope.attention.lower.kernels.tile_table import ROWS_PER_PROGRAM


@triton.jit
@no_type_check
def sink_kernel(
    OUT, LSE, SINK, LSE_OUT, H, N, ob, oh, on, sink_stride, d: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    head_index = tl.program_id(0)
    n = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)[None, :]
    lse = tl.load(LSE + head_index.to(tl.int64) * N + n, mask=n < N, other=0.0)
    sink = tl.load(SINK + (head_index % H) * sink_stride)
    max_score = tl.maximum(lse, sink)
    lse_with_sink = max_score + tl.log(tl.exp(lse - max_score) + tl.exp(sink - max_score))
    tl.store(LSE_OUT + head_index.to(tl.int64) * N + n, lse_with_sink, mask=n < N)
    addresses = (
        OUT
        + (head_index // H).to(tl.int64) * ob
        + (head_index % H).to(tl.int64) * oh
        + n[:, None].to(tl.int64) * on
        + column
    )
    in_bounds = (n < N)[:, None] & (column < d)
    out = tl.load(addresses, mask=in_bounds, other=0.0).to(tl.float32) * tl.exp(lse - lse_with_sink)[:, None]
    tl.store(addresses, out.to(OUT.dtype.element_ty), mask=in_bounds)


def add_sink(out: Tensor, lse: Tensor, sink: Tensor) -> Tensor:
    """Scale `out` in place and return the log-sum-exp with the sink."""
    b, h, n, d = out.shape
    lse, lse_with_sink = lse.contiguous(), torch.empty_like(lse, memory_format=torch.contiguous_format)
    grid = b * h, triton.cdiv(n, ROWS_PER_PROGRAM)
    sink_stride = int(sink.numel() > 1)  # 0 if all heads share one sink
    sink_kernel[grid](
        out,
        lse,
        sink,
        lse_with_sink,
        h,
        n,
        *out.stride()[:3],
        sink_stride,
        d=d,
        WIDTH=triton.next_power_of_2(d),
        ROWS=ROWS_PER_PROGRAM,
        num_warps=4,
    )
    return lse_with_sink
