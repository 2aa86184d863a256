"""Why does a head look there? One score, or a head's whole pattern, as a sum over pairs of what wrote the two tokens."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.definition import positions
from rheoscope.covers.scores import permitted, side
from rheoscope.shapes import RheoscopeError
from rheoscope.space.components import checked, components
from rheoscope.space.dataset import dataset
from rheoscope.space.head import Heads, of_head
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray

DEFINITIONS = {
    "contribution": "what a component of the query's token and one of the key's token add to the score together; the key's `bias` is the "
    "same for all keys where positions do not turn: softmax does not see it, a shift of the keys' bias moves it; a pattern is free of it",
    "position_bias": "what the position adds to the score by itself (ALiBi, T5), beside what it does to queries and keys",
    "score": "the score before a cap: the sum of all contributions and of the position's bias",
    "weight": "the attention weight that the score got; of a pattern, NaN",
}


@torch.no_grad()
def why(
    view: View, trace: Trace, layer: int, head: int, query: int | None = None, key: int | None = None
) -> "xarray.Dataset":
    """Which upstream components make this score, exactly.

    **Answers** "is it the embedding, an earlier head or an MLP that makes this token look at that one?"

    **Formula** s_ij = Σ_{a,b} Δ_a(x_i) M(i − j) Δ_b(x_j)ᵀ over all components a of the query's token and b of the key's token
    (embedding, heads, MLPs, norms; `bias`: all constants of queries or of keys), the scales of norms frozen as they are.
    Without `query` and `key` the head's pattern: (1/N) Σ_i (Σ_j α_ij s_ij − mean_j s_ij), how far the attended scores lie above
    those that could have been; constants of a row drop out.

    **Gives** (from, to): `contribution`, `from` on the query's side; `position_bias`, `score`, `weight`.

    **Laws** contributions and the position's bias sum to the score; no gauge moves any of them, but a shift of the keys' bias
    (where positions do not turn) moves column `bias` of a score by a constant of its row. It moves nothing of a pattern.

    **Source** the QK circuit of Elhage et al. 2021, taken apart over the whole stream.

    **Siblings** `scores` has shares of all scores of a head; `readout` does for a logit what this does for attention.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> found = rs.why(model.view, model.trace("The keys to the cabinet are"), layer=2, head=1, query=5, key=1)
    >>> bool(abs(found.contribution.sum() + found.position_bias - found.score) < 1e-3)
    True
    """
    heads = view.heads_of(layer, head)
    if not heads.plain:
        raise RheoscopeError("the scores of this model are no scaled dot products, so they have no such parts")
    if (query is None) != (key is None):
        raise RheoscopeError("a score has a query and a key; type both, or neither for the head's whole pattern")
    if query is None or key is None:
        asked, answered, mixed = None, None, pattern(heads, trace, layer, head)
    else:
        asked, answered = checked([query, key], len(trace))
        mixed = torch.ones(1, 1, dtype=torch.promote_types(trace.points.dtype, torch.float32))
        _see(heads, len(trace), asked, answered)
    q, k, names = sides_of(heads, trace, layer, head, asked, answered)
    table = (q.flatten(1) @ (mixed.to(k) @ k).flatten(1).mT).cpu()
    bias, weight = _beside(trace, layer, head, asked, answered, mixed)
    values = {
        "contribution": (("from", "to"), table),
        "position_bias": ((), bias),
        "score": ((), float(table.double().sum()) + bias),
        "weight": ((), weight),
    }
    attributes = {"analysis": "why", "layer": layer, "head": head, "pairs": _told(trace, asked, answered)}
    return dataset(values, DEFINITIONS, {"from": names, "to": names}, attributes | trace.provenance)


def sides_of(
    heads: Heads, trace: Trace, layer: int, head: int, query: int | None, key: int | None
) -> tuple[Float[Tensor, "c n k"], Float[Tensor, "c m k"], list[str]]:
    """Queries and keys of one head as sums over components, placed, the scale in the queries."""
    step = trace.steps[trace.where[layer]]
    made = [components(trace, step, None if at is None else [at]) for at in (query, key)]
    group = heads.group(head)
    matrices = (heads.W_Q[head : head + 1], heads.W_K[group : group + 1])
    biases = (
        None if heads.b_Q is None else heads.b_Q[head : head + 1],
        None if heads.b_K is None else heads.b_K[group : group + 1],
    )
    placed = []
    for one, at, W, b, then in zip(made, (query, key), matrices, biases, (heads.q_norm, heads.k_norm), strict=True):
        x = trace.points[trace.where[layer], slice(None) if at is None else [at]].to(one.parts)
        hats = heads.norm.centre(one.parts) * heads.norm.scale(x)
        parts = side(heads.norm, hats, W, b, then)
        there = torch.arange(len(trace), device=x.device) if at is None else torch.tensor([at], device=x.device)
        placed.append(heads.mechanism.position.place(parts, there)[:, 0])
    return placed[0] * heads.scale, placed[1], [*made[0].names, "bias"]


def pattern(heads: Heads, trace: Trace, layer: int, head: int) -> Float[Tensor, "n n"]:
    """(α − uniform)/N, α summing to 1: how a head mixes scores into its pattern. A row without any weight has none."""
    weights = trace.weights(layer, head)
    allowed = permitted(heads, len(trace), weights.device).to(weights)
    whole = weights.sum(-1, keepdim=True)
    above = weights / whole.clamp(min=1e-30) - allowed / allowed.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(whole > 0, above, 0) / len(trace)


def _beside(
    trace: Trace, layer: int, head: int, query: int | None, key: int | None, mixed: Float[Tensor, "n m"]
) -> tuple[float, float]:
    i, j = positions(len(trace), len(trace), trace.points.device)
    bias = of_head(trace.view.heads_of(layer).mechanism, head).position.bias(i, j)
    bias = torch.zeros(1, 1).expand(len(trace), len(trace)) if bias is None else bias.reshape(len(trace), len(trace))
    if query is None or key is None:
        return float((mixed.double() * bias.to(mixed.device).double()).sum()), float("nan")
    return float(bias[query, key]), float(trace.weights(layer, head)[query, key])


def _see(heads: Heads, n: int, query: int, key: int) -> None:
    if not bool(permitted(heads, n, heads.W_Q.device)[query, key]):
        raise RheoscopeError(
            f"token {query} may not look at token {key}; type a key that comes no later than the query"
        )


def _told(trace: Trace, query: int | None, key: int | None) -> str:
    if query is None or key is None:
        return "all"
    return f"{query} {trace.tokens[query]!r} looks at {key} {trace.tokens[key]!r}"
