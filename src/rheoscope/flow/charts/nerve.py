"""The nerve of a layer: how many of their nearest keys two heads have in common."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rheoscope.attention.definition import query_key_positions
from rheoscope.space.trace import Trace
from rheoscope.statistics.ranks import centred_ranks


def nerve(trace: Trace, token_positions: list[int], n_neighbours: int) -> dict[str, Float[Tensor, "layer h h"]]:
    """The overlap of the nearest keys of two heads of a layer, and its expected value for random keys.

    The mean is over queries with more than `n_neighbours` permitted keys besides themselves; NaN if a layer has none.
    """
    tables = []
    for layer, heads in enumerate(trace.view.layer_heads):
        i, j = query_key_positions(len(trace), len(trace), trace.points.device)
        allowed = (heads.mechanism.mask(i, j) & (i[:, None] != j))[token_positions][:, token_positions]
        scores = torch.stack(
            [trace.scores(layer, head)[token_positions][:, token_positions] for head in range(heads.n_heads)]
        )
        tables.append(kernel(scores, allowed, n_neighbours))
    overlap, null = torch.stack(tables, 1)
    return {"nerve": overlap, "nerve_null": null}


def kernel(scores: Float[Tensor, "h n n"], allowed: Bool[Tensor, "n n"], n_neighbours: int) -> Float[Tensor, "2 h h"]:
    """The mean over queries of |A ∩ B|/√(|A||B|) for the neighbourhoods of every two heads, and its expected value.

    >>> same = torch.tensor([[[0.0, 3.0, 1.0], [1.0, 0.0, 2.0], [5.0, 1.0, 0.0]]]).expand(2, 3, 3)
    >>> kernel(same, ~torch.eye(3, dtype=torch.bool), 1)[:, 0, 1].tolist()
    [1.0, 0.5]
    """
    has_enough_keys = allowed.sum(-1) > n_neighbours
    scores, allowed = scores[:, has_enough_keys], allowed[has_enough_keys]
    if not len(allowed):
        return torch.full((2, len(scores), len(scores)), float("nan"), dtype=torch.float64, device=scores.device)
    is_neighbour = neighbourhoods(scores, allowed, n_neighbours).double()
    size = is_neighbour.sum(-1).sqrt()
    overlap = torch.einsum("aqk,bqk->abq", is_neighbour / size[..., None], is_neighbour / size[..., None])
    chance_overlap = torch.einsum("aq,bq->abq", size, size) / allowed.sum(-1)
    is_diagonal = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    return torch.stack([overlap.mean(-1), torch.where(is_diagonal, 1, chance_overlap.mean(-1))])


def neighbourhoods(
    scores: Float[Tensor, "h q n"], allowed: Bool[Tensor, "q n"], n_neighbours: int
) -> Bool[Tensor, "h q n"]:
    """The keys with the largest scores, including ties with the last of them."""
    ranks = torch.where(allowed, centred_ranks(scores, allowed), -torch.inf)
    return allowed & (ranks >= ranks.topk(n_neighbours, dim=-1).values[..., -1:])
