"""A gradient taken back through the stream, one half-layer at a time: no more than one of them is ever held."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.block_size import numbers_at_once
from rheoscope.space.trace import Trace
from rheoscope.space.transposed import transposed

Cloud = Float[Tensor, "n d"]
WIDER = 16
"""An MLP holds about so many numbers for each one of a token: two or three hidden layers of four times the width."""


def pulled_back(trace: Trace, by_last: Cloud) -> list[Cloud]:
    """The gradient by what the attention of every layer wrote, from that by the last points.

    **Formula** g_mid = g + g ∂mlp/∂x_mid,  g = g_mid + g_mid ∂attention/∂x;  a parallel block has both at x.

    The points are known, so each half-layer is run again where it stands. The stream must be a sum: `adds_up(trace)`.

    **Laws** equal to autograd's gradient through the whole model, in every family whose stream is a sum.
    """
    view, g, found = trace.view, by_last, []
    for layer in reversed(range(view.layers)):
        heads, x, middle = view.blocks[layer], trace.read_by(layer), trace.points[trace.middle[layer]]
        if trace.steps[trace.middle[layer]] in trace.not_read:
            found.append(g)
            g = g + _back_by_rows(view.mlps[layer], x, g) + _back(heads.added, x, g)
        else:
            g = g + _back_by_rows(view.mlps[layer], middle, g)
            found.append(g)
            g = g + _back(heads.added, x, g)
    return found[::-1]


def adds_up(trace: Trace) -> bool:
    """Whether every layer is attention and an MLP, each added to the stream: no norm after a sum, no source."""
    return not any(step.is_sum or step.is_cross for step in trace.steps)


def _back_by_rows(half: Callable[[Tensor], Tensor], x: Cloud, g: Cloud) -> Cloud:
    """The same for a map of each token alone, some tokens at a time: an MLP is wide."""
    rows = max(1, numbers_at_once(x.device) // (WIDER * x.shape[-1]))
    return torch.cat([_back(half, *both) for both in zip(x.split(rows), g.split(rows), strict=True)])


def _back(half: Callable[[Tensor], Tensor], x: Cloud, g: Cloud) -> Cloud:
    """g ∂half/∂x."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return transposed(half(x), x, g)
