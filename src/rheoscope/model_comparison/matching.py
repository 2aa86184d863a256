"""Layers and heads of models of different shape, matched by representational similarity (RSA) on the same tokens.

similarity of two clouds     Spearman's correlation of their pairwise distances
similarity of two heads      the same of their updates Δ_h, seen as clouds
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.model_comparison.flow_divergence import rank_vectors, step_ranks
from rheoscope.space.trace import Trace


@dataclass(frozen=True, eq=False)
class Similarities:
    """RSA of all layers (their ends) and of all heads of two models, on one text."""

    layers: Float[Tensor, "layer other_layer"]
    heads: Float[Tensor, "head other_head"]


def similarities(first: Trace, second: Trace, positions: list[int]) -> Similarities:
    """The similarity of every pair of layers and of every pair of heads."""
    layers = [step_ranks(trace, positions)[layer_ends(trace)] for trace in (first, second)]
    heads = [head_ranks(trace, positions) for trace in (first, second)]
    return Similarities(layers[0] @ layers[1].mT, (heads[0] @ heads[1].mT).float())


def layer_ends(trace: Trace) -> list[int]:
    """The indices of the last point of every layer."""
    return [*trace.input_steps[1:], len(trace.steps) - 1]


def head_ranks(trace: Trace, positions: list[int]) -> Float[Tensor, "head pairs"]:
    """The rank vectors of the updates of all heads, layer by layer."""
    return torch.cat([rank_vectors(trace.attention_parts(layer, positions)[0]) for layer in range(trace.view.layers)])


def same_depth(n_layers: int, n_other: int) -> Int[Tensor, " layer"]:
    """The layer of the other model at the same relative depth, for every layer.

    >>> same_depth(3, 5).tolist(), same_depth(4, 2).tolist()
    ([1, 2, 4], [0, 0, 1, 1])
    """
    depth = torch.arange(1, n_layers + 1) / n_layers
    return (depth * n_other).round().long().clamp(min=1) - 1


def head_numbers(trace: Trace) -> list[tuple[int, int]]:
    """(layer, head) of every head, in the order of the similarities."""
    return [(layer, head) for layer, heads in enumerate(trace.view.layer_heads) for head in range(heads.n_heads)]
