"""Outputs of attention given a sink afterwards, in place: o sigmoid(lse - sink), and the log-sum-exp with the sink in it."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 64


@triton.jit
@no_type_check
def sink_rows(OUT, LSE, SINK, TOTAL, H, N, ob, oh, on, one, d: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    head = tl.program_id(0)
    n = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)[None, :]
    lse = tl.load(LSE + head.to(tl.int64) * N + n, mask=n < N, other=0.0)
    sink = tl.load(SINK + (head % H) * one)
    high = tl.maximum(lse, sink)
    total = high + tl.log(tl.exp(lse - high) + tl.exp(sink - high))
    tl.store(TOTAL + head.to(tl.int64) * N + n, total, mask=n < N)
    at = OUT + (head // H).to(tl.int64) * ob + (head % H).to(tl.int64) * oh + n[:, None].to(tl.int64) * on + column
    there = (n < N)[:, None] & (column < d)
    out = tl.load(at, mask=there, other=0.0).to(tl.float32) * tl.exp(lse - total)[:, None]
    tl.store(at, out.to(OUT.dtype.element_ty), mask=there)


def scale(out: Tensor, lse: Tensor, sink: Tensor) -> Tensor:
    b, h, n, d = out.shape
    lse, total = lse.contiguous(), torch.empty_like(lse, memory_format=torch.contiguous_format)
    grid = b * h, triton.cdiv(n, ROWS)
    one = int(sink.numel() > 1)  # the step from a head's sink to the next
    sink_rows[grid](
        out,
        lse,
        sink,
        total,
        h,
        n,
        *out.stride()[:3],
        one,
        d=d,
        WIDTH=triton.next_power_of_2(d),
        ROWS=ROWS,
        num_warps=4,
    )
    return total
