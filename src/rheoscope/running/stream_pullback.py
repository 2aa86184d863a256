"""Backpropagation through the stream one half-layer at a time, with the graph of one half-layer in memory."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.block_size import block_numel
from rheoscope.space.autograd_pullback import pullback_by_autograd
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

Clouds = Float[Tensor, "b n d"]
MLP_MEMORY_FACTOR = 16
"""An MLP stores about this many numbers per number of a token: two or three hidden layers of four times the width."""


def pull_back_gradient(traces: Traces, final_gradient: Clouds) -> list[Clouds]:
    """The gradient with respect to what the attention of every layer wrote, for many texts at once.

    **Formula** g_mid = g + g ∂mlp/∂x_mid,  g = g_mid + g_mid ∂attention/∂x;  a parallel block has both at x.

    `final_gradient` is the gradient with respect to the last points. The points are known, so each half-layer is recomputed
    from them. The stream must be a sum: `is_residual_sum(traces)`.

    **Laws** Equal to autograd's gradient through the whole model, in every family whose stream is a sum.
    """
    view, g, gradients = traces.view, final_gradient, []
    for layer in reversed(range(view.layers)):
        x, middle = (
            view.to_model_precision(traces.points_at(step))
            for step in (traces.input_steps[layer], traces.mid_steps[layer])
        )
        attention, mlp = (
            partial(view.layer_heads[layer].attention_update, mask=traces.padding_for_layer(layer)),
            view.mlps[layer],
        )
        is_parallel = traces.steps[traces.mid_steps[layer]] in traces.unread_steps
        g = g if is_parallel else g + _pull_back_in_chunks(mlp, middle, g)
        gradients.append(g)
        if layer:  # the gradient before the first layer is not needed
            g = g + (_pull_back_in_chunks(mlp, x, g) if is_parallel else 0) + _pull_back(attention, x, g)
    return gradients[::-1]


def is_residual_sum(trace: Trace | Traces) -> bool:
    """Whether every layer adds attention and an MLP to the stream: no norm after a sum, no cross-attention, no mix of several streams."""
    is_mixed = any(trace.steps[step] in trace.unread_steps for step in trace.input_steps)
    return not is_mixed and not any(step.is_sum or step.is_cross for step in trace.steps)


def _pull_back_in_chunks(half_layer: Callable[[Tensor], Tensor], x: Clouds, g: Clouds) -> Clouds:
    """The same for a map of single tokens, in chunks of tokens, since an MLP is wide."""
    chunk_rows = max(1, block_numel(x.device) // (MLP_MEMORY_FACTOR * x.shape[-1]))
    chunks = zip(x.flatten(0, 1).split(chunk_rows), g.flatten(0, 1).split(chunk_rows), strict=True)
    return torch.cat([_pull_back(half_layer, *chunk) for chunk in chunks]).unflatten(0, x.shape[:2])


def _pull_back(half_layer: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> Tensor:
    """g ∂half_layer/∂x."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return pullback_by_autograd(half_layer(x), x, g)
