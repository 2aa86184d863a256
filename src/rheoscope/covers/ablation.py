"""Heads silenced while the model runs: each output its own mean, or attention spread evenly."""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.position import NoPosition
from rheoscope.attention.score import Gram
from rheoscope.covers.head_selection import Chosen
from rheoscope.space.model import LayerEdit
from rheoscope.space.trace import Trace

Means = list[Float[Tensor, "*b h _"]]
"""What every head gives on average, layer by layer, each of its own width; of one text, or of each of several."""


@torch.no_grad()
def mean_outputs(trace: Trace, kept: Bool[Tensor, " n"]) -> Means:
    """The mean over the kept tokens of what every head gives, layer by layer, in the model as it is."""
    blocks = enumerate(trace.view.blocks)
    return [heads.outputs(trace.read_by(layer))[:, kept].mean(1) for layer, heads in blocks]


def mean_ablation(means: Means, chosen: Chosen) -> dict[int, LayerEdit]:
    """The chosen heads give every token the same: their mean."""
    return {layer: _changing(heads, _constant(means[layer])) for layer, heads in chosen.items()}


def uniform_ablation(chosen: Chosen) -> dict[int, LayerEdit]:
    """The chosen heads look at every permitted token alike: the attention of zero scores."""
    return {layer: _changing(heads, _even) for layer, heads in chosen.items()}


def mean_ablation_by_row(means: Means, silent: Bool[Tensor, "b l h"]) -> dict[int, LayerEdit]:
    """Of several copies of one text, each with heads of its own that give their mean."""
    layers = [layer for layer in range(silent.shape[1]) if bool(silent[:, layer].any())]
    return {layer: _silencing(silent[:, layer], means[layer]) for layer in layers}


def _silencing(silent: Bool[Tensor, "b h"], mean: Float[Tensor, "h e"]) -> LayerEdit:
    def change(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        return torch.where(silent.to(out.device)[..., None, None], mean[None, :, None].to(out), out)

    return change


Anew = Callable[[Tensor, Tensor, Tensor, Mechanism], Tensor]


def _changing(heads: list[int], anew: Anew) -> LayerEdit:
    def change(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        new = out.clone()
        new[:, heads] = anew(q, k, v, mechanism)[:, heads].to(out.dtype)
        return new

    return change


def _even(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
    return replace(mechanism, score=Gram(scale=0.0), position=NoPosition()).attend(q, k, v)


def _constant(mean: Float[Tensor, "*b h e"]) -> Anew:
    return lambda q, k, v, mechanism: mean[..., None, :].expand(*q.shape[:-1], -1)
