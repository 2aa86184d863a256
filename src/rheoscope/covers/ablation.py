"""Ablation of heads in a running model: outputs replaced by their mean, or uniform attention."""

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
"""The mean output of every head, for each layer, of one text or of several."""


@torch.no_grad()
def mean_outputs(trace: Trace, is_included: Bool[Tensor, " n"]) -> MeanOutputs:
    """The mean output of every head over the included tokens, for each layer of the unchanged model."""
    blocks = enumerate(trace.view.layer_heads)
    return [heads.outputs(trace.layer_input(layer))[:, is_included].mean(1) for layer, heads in blocks]


def mean_ablation(means: MeanOutputs, heads_by_layer: HeadsByLayer) -> dict[int, LayerEdit]:
    """Edits in which the selected heads give every token their mean output."""
    return {
        layer: _replace_head_outputs(heads, _constant_output(means[layer])) for layer, heads in heads_by_layer.items()
    }


def uniform_ablation(heads_by_layer: HeadsByLayer) -> dict[int, LayerEdit]:
    """Edits in which the selected heads attend uniformly to the permitted tokens (all scores 0)."""
    return {layer: _replace_head_outputs(heads, _uniform_attention) for layer, heads in heads_by_layer.items()}


def mean_ablation_by_row(means: MeanOutputs, is_ablated: Bool[Tensor, "b l h"]) -> dict[int, LayerEdit]:
    """Edits of a batch of copies of one text. Each copy has its own set of mean-ablated heads."""
    layers = [layer for layer in range(is_ablated.shape[1]) if bool(is_ablated[:, layer].any())]
    return {layer: _ablate_heads_by_row(is_ablated[:, layer], means[layer]) for layer in layers}


def _ablate_heads_by_row(is_ablated: Bool[Tensor, "b h"], mean: Float[Tensor, "h e"]) -> LayerEdit:
    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        return torch.where(is_ablated.to(out.device)[..., None, None], mean[None, :, None].to(out), out)

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
