"""Tokens made ready for a half-precision kernel: mapped in float32, rounded once, a bias per key split over three columns.

    queries   [ y_i | GAIN  GAIN   GAIN | 0 … ]     y = x, or x/|x| where the map is that
    keys      [ y_j | z_high z_mid z_low | 0 … ]     z = (bias_j - square |y_j|^2) / (GAIN scale)

so that scale (query row . key row) = scale y_i . y_j + bias_j - square |y_j|^2, the bias as exact as float32 although every
column is rounded to half precision (one column would lose all but 8 of its bits in bfloat16). Where the constant of a row
matters too, three more columns have it the other way round. Columns are filled up to a multiple of 16, the step of the
matrix units. On a GPU one small kernel writes each side; `by_torch` says what it computes.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

GAIN = 16.0
"""What queries multiply the bias by: in float16 a bias of a million still has a column."""
PARTS, STEP = 3, 16


class Made(NamedTuple):
    """How rows are made: lengths taken away or not, `columns` for a bias of no side (0), of keys (1) or of both (2)."""

    unit: bool = False
    columns: int = 0
    keys: bool = False
    square: float = 0.0
    scale: float = 1.0

    def width(self, d: int) -> int:
        d += PARTS * self.columns
        return d + -d % (STEP if self.columns else 8)

    @property
    def own(self) -> bool:
        """Whether this side has a bias, in columns of its own."""
        return self.columns > (0 if self.keys else 1)

    def leaves(self, x: Tensor, dtype: torch.dtype) -> bool:
        """Whether rows are ready as they are."""
        return not self.unit and x.dtype == dtype and self.width(x.shape[-1]) == x.shape[-1]


def rows(x: Float[Tensor, "b h n d"], bias: Float[Tensor, "h n"] | None, made: Made, dtype: torch.dtype) -> Tensor:
    """The rows of one side in `dtype`, (b, h, n, width)."""
    if made.leaves(x, dtype):
        return x
    if x.device.type != "cuda" or torch.compiler.is_compiling():  # a compiler fuses what torch says
        return by_torch(x, bias, made, dtype)
    return _Rows.apply(x, bias, made, dtype) if torch.is_grad_enabled() else by_kernel(x, bias, made, dtype)


def widened(x: Float[Tensor, "*n d"], step: int) -> Float[Tensor, "*n width"]:
    """Columns of 0 up to a multiple of `step`; what has that width is left alone, where torch would copy it."""
    missing = -x.shape[-1] % step
    return pad(x, (0, missing)) if missing else x


def by_torch(x: Float[Tensor, "b h n d"], bias: Float[Tensor, "h n"] | None, made: Made, dtype: torch.dtype) -> Tensor:
    """The same in plain torch, what the kernel is compared with."""
    y = x.float()
    if made.unit:
        length = y.norm(dim=-1, keepdim=True)
        y = y / length.masked_fill(length == 0, torch.inf)
    y = y.to(dtype)
    width = made.width(x.shape[-1])
    if not made.columns:
        return pad(y, (0, width - y.shape[-1]))
    constant = y.new_full((PARTS,), GAIN).expand(*y.shape[:-1], PARTS)
    own = []
    if made.own:
        z = -made.square * y.float().square().sum(-1)
        own = [split((z if bias is None else z + bias) / (GAIN * made.scale), dtype)]
    more = own + [constant] * (made.columns - len(own))
    y = torch.cat([y, *(more if made.keys else more[::-1])], -1)
    return pad(y, (0, width - y.shape[-1]))


def split(z: Float[Tensor, "*n"], dtype: torch.dtype) -> Float[Tensor, "*n parts"]:
    """z as a sum of three numbers of half precision: each takes what the ones before it leave.

    >>> float(split(torch.tensor(1 / 3), torch.bfloat16).double().sum() - torch.tensor(1 / 3).double())
    0.0
    """
    parts = []
    for _ in range(PARTS):
        parts.append(z.to(dtype))
        z = z - parts[-1].to(z.dtype)
    return torch.stack(parts, -1)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, made: Made, dtype: torch.dtype) -> Tensor:
        ctx.made = made
        ctx.save_for_backward(x)
        return by_kernel(x, bias, made, dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        from rheoscope.attention.lower.kernels.rows import backward

        (x,) = ctx.saved_tensors
        dx, dz = backward(_dense(x), _dense(dy), ctx.made, ctx.needs_input_grad[1])
        return dx, None if dz is None else dz.sum(0), None, None


def by_kernel(x: Tensor, bias: Tensor | None, made: Made, dtype: torch.dtype) -> Tensor:
    from rheoscope.attention.lower.kernels.rows import forward

    return forward(_dense(x), None if bias is None else bias.float().contiguous(), made, dtype)


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
