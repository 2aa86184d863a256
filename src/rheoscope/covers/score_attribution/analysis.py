"""Why does a head look there? One score, or a head's whole pattern, as a sum over pairs of what wrote the two tokens."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.definition import query_key_positions
from rheoscope.covers.agreement.words import most_similar_head, required_agreement
from rheoscope.covers.layer_inputs import resolve_layer
from rheoscope.covers.scores.analysis import allowed_pairs, head_vector_parts
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.components import components, resolve_positions
from rheoscope.space.head import Heads, single_head_mechanism
from rheoscope.space.report_run import ReportRun
from rheoscope.space.results import Results
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.settings import HeadIndex, LayerIndex, TokenIndex
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def score_attribution(
    trace: Trace,
    layer: LayerIndex = -1,
    head: HeadIndex = 0,
    query: TokenIndex | None = None,
    key: TokenIndex | None = None,
) -> "xarray.Dataset":
    """Which upstream components make this score, exactly.

    **Answers** "is it the embedding, an earlier head or an MLP that makes this token look at that one?"

    **Formula** s_ij = Σ_{a,b} Δ_a(x_i) M(i − j) Δ_b(x_j)ᵀ over all components a of the query's token and b of the key's token
    (embedding, heads, MLPs, norms; `bias`: all constants of queries or of keys), the scales of norms frozen as they are.
    Without `query` and `key` the head's pattern: (1/N) Σ_i (Σ_j α_ij s_ij − mean_j s_ij), how far the attended scores lie above
    those that could have been; constants of a row drop out.

    **Gives** (from, to): `contribution`, `from` on the query's side; `position_bias`, `score`, `weight`. Negative layers and
    tokens count from the end.

    **Laws** contributions and the position's bias sum to the score; no gauge moves any of them, but a shift of the keys' bias
    (where positions do not turn) moves column `bias` of a score by a constant of its row. It moves nothing of a pattern.

    **Source** the QK circuit of Elhage et al. 2021, taken apart over the whole stream.

    **Siblings** `scores` has shares of all scores of a head; `readout` does for a logit what this does for attention.

    >>> import rheoscope as rs
    >>> found = rs.score_attribution(rs.load().trace("The keys to the cabinet are"), layer=2, head=1, query=5, key=1)
    >>> bool(abs(found.contribution.sum() + found.position_bias - found.score) < 1e-3)
    True
    """
    layer = resolve_layer(trace.view, layer, head)
    heads = trace.view.heads_of(layer)
    if not heads.is_scaled_dot:
        raise RheoscopeError(
            "the scores of this model are no scaled dot products, so they have no such parts; "
            "type trace.scores(layer, head) for the scores themselves"
        )
    if (query is None) != (key is None):
        raise RheoscopeError("a score has a query and a key; type both, or neither for the head's whole pattern")
    if query is None or key is None:
        query_position, key_position, pair_weights = None, None, pattern_weights(heads, trace, layer, head)
    else:
        query_position, key_position = resolve_positions([query, key], len(trace))
        pair_weights = at_least_float32(trace.points).new_ones(1, 1)
        _check_visible(heads, len(trace), query_position, key_position)
    (q, component_names), (k, _) = (
        x_hat_components(trace, layer, position) for position in (query_position, key_position)
    )
    table = kernel(
        heads, head, q, _token_positions(trace, query_position), k, _token_positions(trace, key_position), pair_weights
    ).cpu()
    bias, weight = _bias_and_weight(trace, layer, head, query_position, key_position, pair_weights)
    score = float(table.double().sum()) + bias
    values = {"contribution": table, "position_bias": bias, "score": score, "weight": weight}
    attributes = {"layer": layer, "head": head, "pairs": _describe_pairs(trace, query_position, key_position)}
    return SCORE_ATTRIBUTION.label(
        values, {"from": component_names, "to": component_names}, attributes | trace.provenance
    )


def x_hat_components(trace: Trace, layer: int, token: int | None) -> tuple[Float[Tensor, "c n d"], list[str]]:
    """x̂ of one token (or of all) as a sum over components, the norm's scale as it is; and their names, `bias` the last."""
    norm, step_index = trace.view.layer_heads[layer].norm, trace.input_steps[layer]
    decomposition = components(trace, trace.steps[step_index], None if token is None else [token])
    x = trace.points[step_index, slice(None) if token is None else [token]].to(decomposition.parts)
    return norm.centre(decomposition.parts) * norm.scale(x), [*decomposition.names, "bias"]


def kernel(
    heads: Heads,
    head: int,
    query_parts: Float[Tensor, "c n d"],
    query_positions: Int[Tensor, " n"],
    key_parts: Float[Tensor, "c m d"],
    key_positions: Int[Tensor, " m"],
    pair_weights: Float[Tensor, "n m"],
) -> Float[Tensor, "from to"]:
    """What every two components make together of one head's scores, mixed over pairs of tokens; all constants are the last one.

    `asking` and `answering` are parts of x̂ of the tokens that stand at the places `queries` and `keys`.
    """
    group, encode_position = heads.kv_head(head), heads.mechanism.position.encode
    b_Q = None if heads.b_Q is None else heads.b_Q[head : head + 1]
    b_K = None if heads.b_K is None else heads.b_K[group : group + 1]
    q = head_vector_parts(heads.norm, query_parts, heads.W_Q[head : head + 1], b_Q, heads.q_norm)
    k = head_vector_parts(heads.norm, key_parts, heads.W_K[group : group + 1], b_K, heads.k_norm)
    q, k = encode_position(q, query_positions)[:, 0] * heads.scale, encode_position(k, key_positions)[:, 0]
    return q.flatten(1) @ (pair_weights.to(k) @ k).flatten(1).mT


def pattern_weights(heads: Heads, trace: Trace, layer: int, head: int) -> Float[Tensor, "n n"]:
    """(α − uniform)/N, α summing to 1: how a head mixes scores into its pattern. A row without any weight has none."""
    weights = trace.weights(layer, head)
    allowed = allowed_pairs(heads, len(trace), weights.device).to(weights)
    row_sums = weights.sum(-1, keepdim=True)
    excess = weights / row_sums.clamp(min=1e-30) - allowed / allowed.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(row_sums > 0, excess, 0) / len(trace)


def _bias_and_weight(
    trace: Trace, layer: int, head: int, query: int | None, key: int | None, pair_weights: Float[Tensor, "n m"]
) -> tuple[float, float]:
    i, j = query_key_positions(len(trace), len(trace), trace.points.device)
    bias = single_head_mechanism(trace.view.heads_of(layer).mechanism, head).position.bias(i, j)
    bias = torch.zeros(1, 1).expand(len(trace), len(trace)) if bias is None else bias.reshape(len(trace), len(trace))
    if query is None or key is None:
        return float((pair_weights.double() * bias.to(pair_weights.device).double()).sum()), float("nan")
    return float(bias[query, key]), float(trace.weights(layer, head)[query, key])


def _check_visible(heads: Heads, n: int, query: int, key: int) -> None:
    if not bool(allowed_pairs(heads, n, heads.W_Q.device)[query, key]):
        raise RheoscopeError(
            f"token {query} may not look at token {key}; type a key that comes no later than the query"
        )


def _token_positions(trace: Trace, token: int | None) -> Int[Tensor, " n"]:
    device = trace.points.device
    return torch.arange(len(trace), device=device) if token is None else torch.tensor([token], device=device)


def _describe_pairs(trace: Trace, query: int | None, key: int | None) -> str:
    if query is None or key is None:
        return "all"
    return f"{query} {trace.tokens[query]!r} looks at {key} {trace.tokens[key]!r}"


def _report_settings(results: Results) -> dict[str, Any]:
    """The head whose scores follow similarity most clearly."""
    layer, head = most_similar_head(required_agreement(results))
    return {"layer": layer, "head": head}


SCORE_ATTRIBUTION = Analysis(
    name="score_attribution",
    question="Why does a head look there: which earlier components make its scores?",
    ask=score_attribution,
    needs="trace",
    last=3,
    report_runs=(ReportRun("covers", 7, for_files=True),),
    depends_on=("agreement",),
    report=_report_settings,
    fields={
        "contribution": Field(
            ("from", "to"),
            "what a component of the query's token and one of the key's token add to the score together; the key's `bias` is "
            "the same for all keys where positions do not turn: softmax does not see it, a shift of the keys' bias moves it; "
            "a pattern is free of it",
            unit="nats",
        ),
        "position_bias": Field(
            (),
            "what the position adds to the score by itself (ALiBi, T5), beside what it does to queries and keys",
            unit="nats",
        ),
        "score": Field(
            (), "the score before a cap: the sum of all contributions and of the position's bias", unit="nats"
        ),
        "weight": Field((), "the attention weight that the score got; of a pattern, NaN"),
    },
)
