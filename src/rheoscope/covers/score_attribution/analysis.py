"""Score attribution: a score, or a head's pattern, as a sum over pairs of upstream components."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.definition import query_key_positions
from rheoscope.covers.agreement.words import most_similar_head, required_agreement
from rheoscope.covers.layer_inputs import resolve_layer
from rheoscope.covers.scores.analysis import allowed_pairs, check_scaled_dot_scores, head_vector_parts
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.running.feature_components import feature_components
from rheoscope.running.feature_terms import largest_pairs, shares_of_pairs
from rheoscope.running.features import Features
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.components import components, resolve_positions
from rheoscope.space.head import Heads, single_head_mechanism
from rheoscope.space.model_parts import Norm
from rheoscope.space.report_run import ReportRun
from rheoscope.space.results import Results
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.settings import HeadIndex, LayerIndex, TokenIndex, Top
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
    features: Features | None = None,
    top: Top = 12,
) -> "xarray.Dataset":
    """The exact contribution of every pair of upstream components to an attention score.

    **Question** Is it the embedding, an earlier head or an MLP that makes this token attend to that one?

    **Formula** s_ij = Σ_{a,b} Δ_a(x_i) M(i − j) Δ_b(x_j)ᵀ, over the components a of the query's token and b of the key's token:
    embedding, heads, MLPs, norms, and `bias` for all constants of queries or keys. The scales of the norms are held fixed.

    **Settings**
    `layer` and `head` select the head. A negative layer counts from the end.
    `query` and `key` are token positions. Without them, the score is the head's pattern (1/N) Σ_i (Σ_j α_ij s_ij − mean_j s_ij): the
    excess of the attended scores over the permitted ones. Terms that are constant along a row drop out.
    `features` is a dictionary (`rs.Features.load`). Its active features `f12`, `f40`, …, its constant `features.bias` and its
    `features.error` then replace the components that it describes. `top` is the number of listed terms.

    **Returns** (from, to): `contribution`, with `from` on the side of the query. Scalars: `position_bias`, `score`, `weight`.
    With `features` also (term): the largest contributions `largest` between `term_from` and `term_to`, and their `largest_share` of
    all contributions. Scalars: `feature_share` of pairs of features, `error_share` of pairs with an error, `rest_share` of the others.

    **Laws** The contributions and the position bias sum to the score. Transformations that leave the logits unchanged leave them
    unchanged, with one exception. Without rotary positions, a shift of the key bias adds a constant per row to the column `bias` of a
    single score. It changes no pattern.

    **Source** The QK circuit of Elhage et al. 2021, expanded over the whole residual stream.

    **See also** `scores`, for shares of all scores of a head; `readout`, which decomposes a logit.

    >>> import rheoscope as rs
    >>> result = rs.score_attribution(rs.load().trace("The keys to the cabinet are"), layer=2, head=1, query=5, key=1)
    >>> bool(abs(result.contribution.sum() + result.position_bias - result.score) < 1e-3)
    True
    """
    layer = resolve_layer(trace.view, layer, head)
    heads = trace.view.heads_of(layer)
    check_scaled_dot_scores(heads)
    if (query is None) != (key is None):
        raise RheoscopeError(
            Message(
                "a score needs a query and a key, got only one; without both, the pattern of the head is attributed"
            ),
            use(query=-1, key=0),
        )
    if query is None or key is None:
        query_position, key_position, pair_weights = None, None, pattern_weights(heads, trace, layer, head)
    else:
        query_position, key_position = resolve_positions([query, key], len(trace))
        pair_weights = at_least_float32(trace.points).new_ones(1, 1)
        _check_visible(heads, len(trace), query_position, key_position)
    q, query_names = x_hat_components(trace, layer, query_position, features)
    is_same_token = query_position == key_position
    k, key_names = (q, query_names) if is_same_token else x_hat_components(trace, layer, key_position, features)
    table = kernel(
        heads, head, q, _token_positions(trace, query_position), k, _token_positions(trace, key_position), pair_weights
    ).cpu()
    bias, weight = _bias_and_weight(trace, layer, head, query_position, key_position, pair_weights)
    score = float(table.double().sum()) + bias
    values = {"contribution": table, "position_bias": bias, "score": score, "weight": weight}
    attributes = {"layer": layer, "head": head, "pairs": _describe_pairs(trace, query_position, key_position)}
    coords: dict[str, Any] = {"from": query_names, "to": key_names}
    if features is not None:
        values |= shares_of_pairs(table, query_names, key_names)
        pair_values, pair_coords = largest_pairs(table, query_names, key_names, top)
        values, coords = values | pair_values, coords | pair_coords
        attributes |= features.provenance
    return SCORE_ATTRIBUTION.label(values, coords, attributes | trace.provenance)


def x_hat_components(
    trace: Trace, layer: int, token: int | None, features: Features | None = None
) -> tuple[Float[Tensor, "c n d"], list[str]]:
    """x̂ of one token (or of all) as a sum over components with the norm's scale fixed, and their names with `bias` last."""
    norm, step_index = trace.view.layer_heads[layer].norm, trace.input_steps[layer]
    positions = None if token is None else [token]
    if features is None:
        decomposition = components(trace, trace.steps[step_index], positions)
    else:
        decomposition = feature_components(trace, features, step_index, positions)
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
    """The contribution of every pair of components to a weighted sum of one head's scores. The last component is the bias.

    `query_parts` and `key_parts` are components of x̂ of the tokens at `query_positions` and `key_positions`.
    """
    group, encode_position = heads.kv_head(head), heads.mechanism.position.encode
    q = _vector_parts_of_head(heads.norm, query_parts, heads.W_Q, heads.b_Q, heads.q_norm, head)
    k = _vector_parts_of_head(heads.norm, key_parts, heads.W_K, heads.b_K, heads.k_norm, group)
    q, k = encode_position(q, query_positions)[:, 0] * heads.scale, encode_position(k, key_positions)[:, 0]
    return q.flatten(1) @ (pair_weights.to(k) @ k).flatten(1).mT


def _vector_parts_of_head(
    norm: Norm, parts: Float[Tensor, "c n d"], W: Tensor, b: Tensor | None, qk_norm: Norm | None, head: int
) -> Float[Tensor, "part 1 n k"]:
    """The parts of the queries or keys of one head. A norm of queries or keys may divide all heads by one length."""
    if qk_norm is not None:
        return head_vector_parts(norm, parts, W, b, qk_norm)[:, head : head + 1]
    return head_vector_parts(norm, parts, W[head : head + 1], None if b is None else b[head : head + 1], None)


def pattern_weights(heads: Heads, trace: Trace, layer: int, head: int) -> Float[Tensor, "n n"]:
    """(α − uniform)/N with rows of α scaled to sum 1, the weights of the scores in a pattern. A zero row stays 0."""
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
            Message("token {query} cannot attend to token {key} under the mask of this head", query=query, key=key),
            use(query=query, key=query),
        )


def _token_positions(trace: Trace, token: int | None) -> Int[Tensor, " n"]:
    device = trace.points.device
    return torch.arange(len(trace), device=device) if token is None else torch.tensor([token], device=device)


def _describe_pairs(trace: Trace, query: int | None, key: int | None) -> str:
    if query is None or key is None:
        return "all"
    return Message(
        "{query} {query_text!r} attends to {key} {key_text!r}",
        query=query,
        query_text=trace.tokens[query],
        key=key,
        key_text=trace.tokens[key],
    )


def _report_settings(results: Results) -> dict[str, Any]:
    """The head whose scores track similarity most strongly."""
    layer, head = most_similar_head(required_agreement(results))
    return {"layer": layer, "head": head}


FEATURE_FIELDS = {
    "largest": Field(("term",), "largest contributions of pairs of features and other parts to the score", unit="nats"),
    "largest_share": Field(("term",), "share of these contributions in the sum of all contributions"),
    "feature_share": Field((), "share of the pairs of two features in the sum of all contributions"),
    "error_share": Field((), "share of the pairs in which a side is the error of the dictionary"),
    "rest_share": Field(
        (), "share of all other pairs: constants, biases and components that the dictionary does not describe"
    ),
}


SCORE_ATTRIBUTION = Analysis(
    name="score_attribution",
    question="Which upstream components produce the attention scores of a head?",
    ask=score_attribution,
    needs="trace",
    last=3,
    report_runs=(ReportRun("covers", 7, for_files=True),),
    depends_on=("agreement",),
    report=_report_settings,
    fields={
        "contribution": Field(
            ("from", "to"),
            "contribution of a component of the query's token and a component of the key's token to the score",
            unit="nats",
        ),
        "position_bias": Field(
            (),
            "additive position bias of the score (ALiBi, T5)",
            unit="nats",
        ),
        "score": Field(
            (), "the score before a soft cap, the sum of all contributions and the position bias", unit="nats"
        ),
        "weight": Field((), "the attention weight of the pair (NaN for a pattern)"),
        **FEATURE_FIELDS,
    },
)
