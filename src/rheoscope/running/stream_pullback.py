"""A gradient taken back through the stream, one half-layer at a time: no more than one of them is ever held."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.block_size import numbers_at_once
from rheoscope.space.autograd_pullback import transposed
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

Clouds = Float[Tensor, "b n d"]
WIDER = 16
"""An MLP holds about so many numbers for each one of a token: two or three hidden layers of four times the width."""


def pulled_back(traces: Traces, by_last: Clouds) -> list[Clouds]:
    """The gradient by what the attention of every layer wrote, from that by the last points, of many texts at once.

    **Formula** g_mid = g + g ∂mlp/∂x_mid,  g = g_mid + g_mid ∂attention/∂x;  a parallel block has both at x.

    The points are known, so each half-layer is run again where it stands. The stream must be a sum: `adds_up(traces)`.

    **Laws** equal to autograd's gradient through the whole model, in every family whose stream is a sum.
    """
    view, g, found = traces.view, by_last, []
    for layer in reversed(range(view.layers)):
        x, middle = (view.as_read(traces.at(step)) for step in (traces.where[layer], traces.middle[layer]))
        attention, mlp = partial(view.blocks[layer].added, mask=traces.unseen(layer)), view.mlps[layer]
        both = traces.steps[traces.middle[layer]] in traces.not_read
        g = g if both else g + _back_by_rows(mlp, middle, g)
        found.append(g)
        if layer:  # nobody asks what lies before the first
            g = g + (_back_by_rows(mlp, x, g) if both else 0) + _back(attention, x, g)
    return found[::-1]


def adds_up(trace: Trace | Traces) -> bool:
    """Whether every layer is attention and an MLP, each added to the stream: no norm after a sum, no source."""
    return not any(step.is_sum or step.is_cross for step in trace.steps)


def _back_by_rows(half: Callable[[Tensor], Tensor], x: Clouds, g: Clouds) -> Clouds:
    """The same for a map of each token alone, some tokens at a time: an MLP is wide."""
    rows = max(1, numbers_at_once(x.device) // (WIDER * x.shape[-1]))
    parts = zip(x.flatten(0, 1).split(rows), g.flatten(0, 1).split(rows), strict=True)
    return torch.cat([_back(half, *both) for both in parts]).unflatten(0, x.shape[:2])


def _back(half: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> Tensor:
    """g ∂half/∂x."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return transposed(half(x), x, g)
