"""Which heads look at the same keys: the overlap graph (nerve) of their neighbourhoods."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rheoscope.attention.definition import positions
from rheoscope.space.trace import Trace
from rheoscope.statistics.ranks import ranked


def nerve(trace: Trace, tokens: list[int], nearest: int) -> dict[str, Float[Tensor, "layer h h"]]:
    """How much the nearest keys of two heads of a layer have in common, and what random keys would.

    Over queries that may see more than `nearest` of the tokens besides themselves; NaN in a layer that has none.
    """
    tables = []
    for layer, heads in enumerate(trace.view.blocks):
        i, j = positions(len(trace), len(trace), trace.points.device)
        usable = (heads.mechanism.mask(i, j) & (i[:, None] != j))[tokens][:, tokens]
        scores = torch.stack([trace.scores(layer, head)[tokens][:, tokens] for head in range(heads.count)])
        tables.append(kernel(scores, usable, nearest))
    own, null = torch.stack(tables, 1)
    return {"nerve": own, "nerve_null": null}


def kernel(scores: Float[Tensor, "h n n"], usable: Bool[Tensor, "n n"], nearest: int) -> Float[Tensor, "2 h h"]:
    """Overlaps |A ∩ B|/√(|A||B|) of the neighbourhoods of every two heads, in the mean over queries; then by chance.

    >>> same = torch.tensor([[[0.0, 3.0, 1.0], [1.0, 0.0, 2.0], [5.0, 1.0, 0.0]]]).expand(2, 3, 3)
    >>> kernel(same, ~torch.eye(3, dtype=torch.bool), 1)[:, 0, 1].tolist()
    [1.0, 0.5]
    """
    enough = usable.sum(-1) > nearest
    scores, usable = scores[:, enough], usable[enough]
    if not len(usable):
        return torch.full((2, len(scores), len(scores)), float("nan"), dtype=torch.float64, device=scores.device)
    member = neighbourhoods(scores, usable, nearest).double()
    size = member.sum(-1).sqrt()
    common = torch.einsum("aqk,bqk->abq", member / size[..., None], member / size[..., None])
    by_chance = torch.einsum("aq,bq->abq", size, size) / usable.sum(-1)
    own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    return torch.stack([common.mean(-1), torch.where(own, 1, by_chance.mean(-1))])


def neighbourhoods(scores: Float[Tensor, "h q n"], usable: Bool[Tensor, "q n"], nearest: int) -> Bool[Tensor, "h q n"]:
    """The keys of largest score; those that are equal to the last of them belong to it too."""
    ranks = torch.where(usable, ranked(scores, usable), -torch.inf)
    return usable & (ranks >= ranks.topk(nearest, dim=-1).values[..., -1:])
