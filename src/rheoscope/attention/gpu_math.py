"""tanh, log and square root of scores as the special function units of a GPU compute them, one instruction each.

Torch's own are exact to the last bit and take twenty instructions, more than all else that a kernel does for a score; these
are off by 2^-11 (tanh), 2^-22 (log) and 2^-22 (root) of their values, less than half precision knows. They are that fast
where a compiler fuses them into a kernel; anywhere else they are torch's own. Each has its gradient.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

LN2 = 0.6931471805599453
TINY = 1e-12
"""The square below which a distance is 0, with gradient 0."""


def operator(
    name: str, instruction: str, exact: Callable[[Tensor], Tensor], back: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """A function of one number that torch knows by `exact`, its compiler by `instruction`; back(g, x, y) is its gradient."""
    found: Any = torch.library.custom_op(f"rheoscope::{name}", exact, mutates_args=(), schema="(Tensor x) -> Tensor")
    found.register_fake(torch.empty_like)
    found.register_vmap(lambda info, dims, x: (found(x), dims[0]))
    found.register_autograd(
        lambda ctx, g: back(g, *ctx.saved_tensors),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], output),
    )
    call: Callable[[Tensor], Tensor] = getattr(torch.ops.rheoscope, name).default
    WAITING.append((call, instruction))
    return call


WAITING: list[tuple[Any, str]] = []
"""Functions of which the compiler has not been told: it is loaded only where something is compiled."""


def tell_compiler() -> None:
    """Give torch's compiler one instruction for each function; called before the first kernel is compiled."""
    if not WAITING:
        return
    from torch._inductor.lowering import make_pointwise, register_lowering
    from torch._inductor.virtualized import ops

    while WAITING:
        call, instruction = WAITING.pop()
        written = partial(
            ops.inline_asm_elementwise, asm=f"{instruction} $0, $1;", constraints="=f,f", dtype=torch.float32
        )
        register_lowering(call)(make_pointwise(partial(written, is_pure=True, pack=1)))


tanh = operator("tanh", "tanh.approx.f32", torch.tanh, lambda g, x, y: g * (1 - y * y))
_log2 = operator("log2", "lg2.approx.ftz.f32", torch.log2, lambda g, x, y: g * torch.where(x == 0, 0.0, 1 / (LN2 * x)))
_rsqrt = operator("rsqrt", "rsqrt.approx.ftz.f32", torch.rsqrt, lambda g, x, y: g * (-0.5 * y * y * y))


def log(x: Tensor) -> Tensor:
    """log x; at 0 it is -inf, with gradient 0.

    >>> log(torch.tensor([1.0, 0.0])).tolist()
    [0.0, -inf]
    """
    return LN2 * _log2(x)


def root(x: Tensor) -> Tensor:
    """The square root of what rounding may have made a little negative; 0 with gradient 0 near 0.

    >>> root(torch.tensor([4.0, -1e-9])).tolist()
    [2.0, 0.0]
    """
    near = x < TINY
    kept = torch.where(near, 1.0, x)
    return torch.where(near, 0.0, kept * _rsqrt(kept))
