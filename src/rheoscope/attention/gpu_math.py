"""Approximate tanh, log and square root for GPU kernels, one special-function instruction each.

Torch's versions are exact to the last bit but take about twenty instructions, more than the rest of a kernel's work per
score. These have relative errors of 2^-11 (tanh), 2^-22 (log) and 2^-22 (square root), below half precision. They are
approximate only where a compiler fuses them into a kernel; elsewhere they call torch. Each has a gradient.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

LN2 = 0.6931471805599453
MIN_SQUARE = 1e-12
"""A squared distance below this counts as 0, with gradient 0."""


def approximate_operator(
    name: str,
    instruction: str,
    exact_function: Callable[[Tensor], Tensor],
    backward: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Callable[[Tensor], Tensor]:
    """An elementwise operator: eager torch runs `exact_function`, its compiler emits `instruction`.

    `backward(g, x, y)` returns the gradient of x from the gradient g of the output y.
    """
    custom_op: Any = torch.library.custom_op(
        f"rheoscope::{name}", exact_function, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    custom_op.register_fake(torch.empty_like)
    custom_op.register_vmap(lambda info, dims, x: (custom_op(x), dims[0]))
    custom_op.register_autograd(
        lambda ctx, grad_output: backward(grad_output, *ctx.saved_tensors),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], output),
    )
    op: Callable[[Tensor], Tensor] = getattr(torch.ops.rheoscope, name).default
    PENDING_LOWERINGS.append((op, instruction))
    return op


PENDING_LOWERINGS: list[tuple[Any, str]] = []
"""Operators not yet registered with the compiler, which is imported only when something is compiled."""


def register_lowerings() -> None:
    """Register one instruction per operator with torch's compiler; called before the first kernel is compiled."""
    if not PENDING_LOWERINGS:
        return
    from torch._inductor.lowering import make_pointwise, register_lowering
    from torch._inductor.virtualized import ops

    while PENDING_LOWERINGS:
        op, instruction = PENDING_LOWERINGS.pop()
        inline_asm = partial(
            ops.inline_asm_elementwise, asm=f"{instruction} $0, $1;", constraints="=f,f", dtype=torch.float32
        )
        register_lowering(op)(make_pointwise(partial(inline_asm, is_pure=True, pack=1)))


tanh = approximate_operator("tanh", "tanh.approx.f32", torch.tanh, lambda g, x, y: g * (1 - y * y))
_log2 = approximate_operator(
    "log2", "lg2.approx.ftz.f32", torch.log2, lambda g, x, y: g * torch.where(x == 0, 0.0, 1 / (LN2 * x))
)
_rsqrt = approximate_operator("rsqrt", "rsqrt.approx.ftz.f32", torch.rsqrt, lambda g, x, y: g * (-0.5 * y * y * y))


def log(x: Tensor) -> Tensor:
    """log x, with value -inf and gradient 0 at 0.

    >>> log(torch.tensor([1.0, 0.0])).tolist()
    [0.0, -inf]
    """
    return LN2 * _log2(x)


def sqrt(x: Tensor) -> Tensor:
    """The square root of a number that rounding may have made slightly negative; 0 with gradient 0 near 0.

    >>> sqrt(torch.tensor([4.0, -1e-9])).tolist()
    [2.0, 0.0]
    """
    is_tiny = x < MIN_SQUARE
    safe_x = torch.where(is_tiny, 1.0, x)
    return torch.where(is_tiny, 0.0, safe_x * _rsqrt(safe_x))
