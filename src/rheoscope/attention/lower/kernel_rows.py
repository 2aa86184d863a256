"""Rows for half-precision kernels: mapped in float32, rounded once, with a bias per key split over three columns.

    queries   [ y_i | GAIN  GAIN   GAIN | 0 … ]     y = x, or x/|x| if the map normalises
    keys      [ y_j | z_high z_mid z_low | 0 … ]     z = (bias_j - square |y_j|^2) / (GAIN scale)

Then scale (query row . key row) = scale y_i . y_j + bias_j - square |y_j|^2. The three columns make the bias as exact as
float32 although each is rounded to half precision; one bfloat16 column would keep 8 bits. If the row constant matters,
three more columns hold the bias of the queries. Rows are padded to a multiple of 16 columns, the step of the matrix
units. On a GPU one kernel writes each side; `pack_rows_torch` computes the same in torch.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from rheoscope.attention.lower.row_layout import GAIN, PARTS, RowLayout


def pack_rows(
    x: Float[Tensor, "b h n d"], bias: Float[Tensor, "h n"] | None, layout: RowLayout, dtype: torch.dtype
) -> Tensor:
    """The rows of one side in `dtype`, with shape (b, h, n, width)."""
    if layout.is_identity(x, dtype):
        return x
    if x.device.type != "cuda" or torch.compiler.is_compiling():  # torch.compile fuses the torch version
        return pack_rows_torch(x, bias, layout, dtype)
    return (
        _PackRows.apply(x, bias, layout, dtype) if torch.is_grad_enabled() else pack_rows_triton(x, bias, layout, dtype)
    )


def pad_columns(x: Float[Tensor, "*n d"], step: int) -> Float[Tensor, "*n width"]:
    """x with zero columns up to a multiple of `step`. If none is missing, x itself, without the copy that `pad` makes."""
    missing = -x.shape[-1] % step
    return pad(x, (0, missing)) if missing else x


def pack_rows_torch(
    x: Float[Tensor, "b h n d"], bias: Float[Tensor, "h n"] | None, layout: RowLayout, dtype: torch.dtype
) -> Tensor:
    """The same in torch, as the reference for the kernel."""
    y = x.float()
    if layout.unit_length:
        length = y.norm(dim=-1, keepdim=True)
        y = y / length.masked_fill(length == 0, torch.inf)
    y = y.to(dtype)
    width = layout.width(x.shape[-1])
    if not layout.bias_groups:
        return pad(y, (0, width - y.shape[-1]))
    constant = y.new_full((PARTS,), GAIN).expand(*y.shape[:-1], PARTS)
    bias_columns = []
    if layout.has_bias:
        z = -layout.square * y.float().square().sum(-1)
        bias_columns = [split_in_parts((z if bias is None else z + bias) / (GAIN * layout.scale), dtype)]
    extra_columns = bias_columns + [constant] * (layout.bias_groups - len(bias_columns))
    y = torch.cat([y, *(extra_columns if layout.is_key else extra_columns[::-1])], -1)
    return pad(y, (0, width - y.shape[-1]))


def split_in_parts(z: Float[Tensor, "*n"], dtype: torch.dtype) -> Float[Tensor, "*n parts"]:
    """z as a sum of three numbers of half precision: each takes what the ones before it leave.

    >>> float(split_in_parts(torch.tensor(1 / 3), torch.bfloat16).double().sum() - torch.tensor(1 / 3).double())
    0.0
    """
    parts = []
    for _ in range(PARTS):
        parts.append(z.to(dtype))
        z = z - parts[-1].to(z.dtype)
    return torch.stack(parts, -1)


class _PackRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, layout: RowLayout, dtype: torch.dtype) -> Tensor:
        ctx.layout = layout
        ctx.save_for_backward(x)
        return pack_rows_triton(x, bias, layout, dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        from rheoscope.attention.lower.kernels.rows import pack_backward

        (x,) = ctx.saved_tensors
        dx, dz = pack_backward(_with_unit_stride(x), _with_unit_stride(dy), ctx.layout, ctx.needs_input_grad[1])
        return dx, None if dz is None else dz.sum(0), None, None


def pack_rows_triton(x: Tensor, bias: Tensor | None, layout: RowLayout, dtype: torch.dtype) -> Tensor:
    from rheoscope.attention.lower.kernels.rows import pack

    return pack(_with_unit_stride(x), None if bias is None else bias.float().contiguous(), layout, dtype)


def _with_unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
