"""Heads silenced while the model runs: each output its own mean, or attention spread evenly."""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.position import NoPosition
from rheoscope.attention.score import Gram
from rheoscope.covers.head_selection import HeadsByLayer
from rheoscope.space.model import LayerEdit
from rheoscope.space.trace import Trace

MeanOutputs = list[Float[Tensor, "*b h _"]]
"""What every head gives on average, layer by layer, each of its own width; of one text, or of each of several."""


@torch.no_grad()
def mean_outputs(trace: Trace, is_included: Bool[Tensor, " n"]) -> MeanOutputs:
    """The mean over the kept tokens of what every head gives, layer by layer, in the model as it is."""
    blocks = enumerate(trace.view.layer_heads)
    return [heads.outputs(trace.layer_input(layer))[:, is_included].mean(1) for layer, heads in blocks]


def mean_ablation(means: MeanOutputs, heads_by_layer: HeadsByLayer) -> dict[int, LayerEdit]:
    """The chosen heads give every token the same: their mean."""
    return {
        layer: _replace_head_outputs(heads, _constant_output(means[layer])) for layer, heads in heads_by_layer.items()
    }


def uniform_ablation(heads_by_layer: HeadsByLayer) -> dict[int, LayerEdit]:
    """The chosen heads look at every permitted token alike: the attention of zero scores."""
    return {layer: _replace_head_outputs(heads, _uniform_attention) for layer, heads in heads_by_layer.items()}


def mean_ablation_by_row(means: MeanOutputs, is_silent: Bool[Tensor, "b l h"]) -> dict[int, LayerEdit]:
    """Of several copies of one text, each with heads of its own that give their mean."""
    layers = [layer for layer in range(is_silent.shape[1]) if bool(is_silent[:, layer].any())]
    return {layer: _silence_heads_by_row(is_silent[:, layer], means[layer]) for layer in layers}


def _silence_heads_by_row(is_silent: Bool[Tensor, "b h"], mean: Float[Tensor, "h e"]) -> LayerEdit:
    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        return torch.where(is_silent.to(out.device)[..., None, None], mean[None, :, None].to(out), out)

    return edit


AttentionFunction = Callable[[Tensor, Tensor, Tensor, Mechanism], Tensor]


def _replace_head_outputs(head_indices: list[int], new_outputs: AttentionFunction) -> LayerEdit:
    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        edited_out = out.clone()
        edited_out[:, head_indices] = new_outputs(q, k, v, mechanism)[:, head_indices].to(out.dtype)
        return edited_out

    return edit


def _uniform_attention(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
    return replace(mechanism, score=Gram(scale=0.0), position=NoPosition()).attend(q, k, v)


def _constant_output(mean: Float[Tensor, "*b h e"]) -> AttentionFunction:
    return lambda q, k, v, mechanism: mean[..., None, :].expand(*q.shape[:-1], -1)
