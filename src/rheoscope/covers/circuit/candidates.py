"""The edges that are worth an exact run: those that gradients, weight composition or score attribution rank highest."""

from collections.abc import Mapping, Sequence

from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.circuit.edges import EMBED, Edge, Node, node_name
from rheoscope.covers.composition.analysis import kernel as composition_kernel
from rheoscope.covers.score_attribution.analysis import score_attribution
from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

Ranking = Mapping[Edge, float]
SIDES = {"q": "to", "k": "from"}
"""Role → the side of a score's components that is summed: those of the other token."""


def composition_ranking(view: View) -> dict[Edge, float]:
    """Q-, K- and V-composition of every pair of heads, from the weights alone. Empty where heads have no M and F."""
    try:
        tables = composition_kernel(view.layer_heads, view.width)
    except RheoscopeError:
        return {}
    heads = [Node(layer, head) for layer, block in enumerate(view.layer_heads) for head in range(block.n_heads)]
    return {
        Edge(sender, receiver, role): float(table[i, j])
        for role, table in zip("qkv", tables.cpu(), strict=True)
        for i, sender in enumerate(heads)
        for j, receiver in enumerate(heads)
        if sender.layer < receiver.layer
    }


def score_ranking(traces: Sequence[Trace]) -> dict[Edge, float]:
    """The share of every earlier head, and of the embedding, in the attention patterns of later heads: mean over texts.

    The share of a component is Σ |contributions with it on one side| / Σ |contributions|, on the side of the query (q) or key (k).
    """
    view, ranking = traces[0].view, dict[Edge, float]()
    heads = [Node(layer, head) for layer, block in enumerate(view.layer_heads) for head in range(block.n_heads)]
    names = {node_name(node, view.layers): node for node in (EMBED, *heads)}
    for receiver in heads:
        for trace in traces:
            try:
                table = score_attribution(trace, receiver.layer, receiver.head).contribution
            except RheoscopeError:  # heads whose scores are no scaled dot products
                break
            for role, side in SIDES.items():
                shares = abs(table).sum(side) / float(abs(table).sum() or 1.0)
                for name, share in zip(map(str, shares.coords[shares.dims[0]].values), shares.values, strict=True):
                    if name in names:
                        edge = Edge(names[name], receiver, role)
                        ranking[edge] = ranking.get(edge, 0.0) + float(share) / len(traces)
    return ranking


def choose_candidates(rankings: Sequence[Ranking], tries: int) -> list[Edge]:
    """The first `tries` edges of every ranking, without repeats.

    >>> first, second = Edge(EMBED, Node(0), "q"), Edge(EMBED, Node(0), "k")
    >>> choose_candidates([{first: 2.0, second: -3.0}, {first: 1.0}], tries=1) == [second, first]
    True
    """
    ranked = [sorted(ranking, key=lambda edge: -abs(ranking[edge]))[:tries] for ranking in rankings]
    return list(dict.fromkeys(edge for edges in ranked for edge in edges))


def strongest_effect(effects: Float[Tensor, "2 e"]) -> Float[Tensor, " e"]:
    """The larger of the effects in both directions.

    >>> import torch
    >>> strongest_effect(torch.tensor([[0.1, -0.4], [0.3, 0.2]]))
    tensor([0.3000, 0.4000])
    """
    return effects.abs().amax(0)
