"""Circuits: the edges between heads that carry the difference between the predictions of two texts."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.circuit.edges import THROUGH, Edge, edge_name, node_name
from rheoscope.covers.circuit.frozen_runs import check_frozen_heads
from rheoscope.covers.circuit.search import Changes, Search, SearchSettings, search_circuit
from rheoscope.covers.layer_inputs import provenance
from rheoscope.covers.patch.analysis import DIRECTIONS, Metric, pair_batch, pair_settings
from rheoscope.covers.patch.metrics import signed_share
from rheoscope.covers.patch.over_pairs import PairLike, as_pairs, attributes, interval_fields, pooled_effects
from rheoscope.covers.patch.pairs import PairBatch, batch_pairs
from rheoscope.covers.patch.patched_runs import TOKENS_PER_RUN
from rheoscope.covers.relation_swap.analysis import check_unembedding
from rheoscope.messages.message import Message
from rheoscope.running.runner import RunnableModel
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.model import Text
from rheoscope.space.report_run import ReportRun
from rheoscope.space.settings import Bounds, Draws, Fraction, Seed, TokenIndex
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

Edges = Annotated[int, Bounds(1, 1000, advised=20)]
Tries = Annotated[int, Bounds(1, 1_000_000, advised=60)]
MIN_EFFECT = 0.02
"""With four pairs, edges of random heads change the faithfulness of planted circuits by up to about this."""


@torch.no_grad()
def circuit(
    model: RunnableModel,
    trace: Trace,
    other: Text | None = None,
    answers: str = "",
    metric: Metric = "logit_diff",
    token: TokenIndex = -1,
    edges: Edges = 20,
    tries: Tries = 60,
    min_effect: Fraction = MIN_EFFECT,
    draws: Draws = 10,
    seed: Seed = 0,
) -> "xarray.Dataset":
    """The edges between heads that carry the difference between a text and another one, found by path patching.

    **Question** Which heads read which other heads to make this prediction, and through M (queries, keys) or through F (values)?

    **Formula** An edge leads from the embedding or a head to the queries, keys or values of a later head, or to the logits. Its path
    is the stream with the MLPs on it, and no other head. `effect` patches a single edge, as `patch` patches a head: the sender
    writes what it writes in the donor's run, all other heads what they write in the base run, the receiver reads the result through
    one projection, and the rest of the model runs as usual. `estimate` replaces that rest by its gradient.
    The circuit kept alone: every head reads the clean text through its edges and the other text otherwise.
    `faithfulness` = (m(circuit) − m(other)) / (m(text) − m(other)).

    **Search** All edges are estimated. The first `tries` edges by estimate, by weight composition and by score attribution are
    patched exactly. The strongest ones that lie on paths from the embedding to the logits form the circuit, at most `edges`.
    Then the weakest edge is removed as long as this changes the faithfulness by less than `min_effect`.

    **Null** `faithfulness_null_draws` is the faithfulness of `draws` random circuits: paths from the embedding to the logits through
    random edges, until they have as many edges. 0 omits them.

    **Returns** (direction, edge): `effect`, `estimate`. (edge): `removal`, the faithfulness that the circuit loses without the edge,
    and `composition` from the weights alone; the coordinates `edge_from`, `edge_to`, `role` and `through` (M, F or logits).
    (draw): `faithfulness_null_draws`. Scalars: `faithfulness`, `faithfulness_F` without the edges into queries and keys (heads attend
    as on the other text), `faithfulness_M` without those into values, `metric_text`, `metric_other`, `edges_tried`, `edges_total`, and
    the correlation and the largest error of the estimates over all edges that were tried.

    **Laws** The circuit of all edges is the model on the text, and that without edges the model on the other text. A path patch
    equals one by forward hooks.

    **Source** Wang et al. 2022, arXiv:2211.00593; Conmy et al. 2023, arXiv:2304.14997; estimates as in Syed et al. 2023, arXiv:2310.10348;
    random circuits as in Shi et al. 2024, arXiv:2410.13032.

    **See also** `patch` patches points, MLPs and whole heads; `composition` compares the operators of heads; `circuit_of_pairs`
    searches over many pairs of texts.

    >>> import rheoscope as rs
    >>> model, text = rs.load(), "The men who live here"
    >>> result = rs.circuit(model, model.trace(text), other="The man who live here", answers=" are| is", edges=4, tries=8)
    >>> "L5.H1 → logits" in result.edge.values, "embed" in result.edge_from.values
    (True, True)
    """
    check_frozen_heads(model.view)
    batch = pair_batch(model, trace, other, answers, metric, token, seed)
    settings = SearchSettings(edges, tries, min_effect, draws, seed)
    return label_circuit([batch], settings, provenance(trace, True, **pair_settings(batch)))


@torch.no_grad()
def circuit_of_pairs(
    model: RunnableModel,
    pairs: Sequence[PairLike],
    answers: str = "",
    metric: Metric = "logit_diff",
    token: TokenIndex = -1,
    edges: Edges = 20,
    tries: Tries = 60,
    min_effect: Fraction = MIN_EFFECT,
    draws: Draws = 10,
    seed: Seed = 0,
) -> "xarray.Dataset":
    """`circuit` over many pairs of texts: one circuit for all of them, with 95 % intervals over pairs.

    **Question** Which circuit carries the difference in general, and not only in one pair of texts?

    **Formula** Every effect is Σ_p (change of the metric) / Σ_p (m(clean) − m(corrupt)), with the bootstrap-t interval of this ratio.

    **Settings** `pairs` as in `patch_pairs`; their spans are not needed. All others as in `circuit`.

    **Returns** The fields of `circuit`, each of `effect`, `removal` and the faithfulness also with `…_low` and `…_high`. It belongs
    to the analysis `circuit`, so `rs.plot` draws it.

    >>> import rheoscope as rs
    >>> pairs = [("The men who live here", "The man who live here"), ("The women who live here", "The woman who live here")]
    >>> rs.circuit_of_pairs(rs.load(), pairs, answers=" are| is", edges=4, tries=8).attrs["pairs"]
    2
    """
    check_frozen_heads(model.view)
    check_unembedding(model)
    batches = batch_pairs(model, as_pairs(pairs), answers, metric, token, TOKENS_PER_RUN)
    settings = SearchSettings(edges, tries, min_effect, draws, seed)
    return label_circuit(batches, settings, attributes(batches, metric, token, seed))


def label_circuit(
    batches: Sequence[PairBatch], settings: SearchSettings, attributes: dict[str, Any]
) -> "xarray.Dataset":
    """The circuit of some pairs as a Dataset, with intervals if there are several pairs."""
    search = search_circuit(batches, settings)
    order = strongest_first(search)
    pooled = pooled_fields(search, order, settings.seed)
    edges = [search.edges[index] for index in order]
    values: dict[str, Any] = {name: effects[0] for name, effects in pooled.items()} | comparison_fields(search)
    values |= {
        "estimate": stack_effects(search.estimates, edges, search.total),
        "faithfulness_null_draws": signed_share((search.random - search.metrics[1]).sum(1), search.total.sum()),
        "composition": [search.compositions.get(edge, float("nan")) for edge in edges],
        "metric_text": search.metrics[0].mean(),
        "metric_other": search.metrics[1].mean(),
        "edges_tried": len(search.exact),
        "edges_total": search.n_edges,
    }
    view = batches[0].clean.view
    coords = coordinates(edges, view.layers) | {"layer": range(view.layers), "head": range(view.heads)}
    dataset = CIRCUIT.label(values, coords, asdict(settings) | attributes)
    return dataset.assign(interval_fields(dataset, pooled)) if "pairs" in attributes else dataset


def strongest_first(search: Search) -> list[int]:
    """The indices of the edges by what their removal costs."""
    losses = (search.retained - search.removed).sum(1) * search.total.sum().sign()
    return losses.argsort(descending=True, stable=True).tolist()


def pooled_fields(search: Search, order: list[int], seed: int) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """The fields that are means over pairs, each with both ends of its interval."""
    corrupt = search.metrics[1]
    edges = [search.edges[index] for index in order]
    empty = corrupt.new_zeros(len(DIRECTIONS), 0, len(corrupt))
    changes = {
        "faithfulness": search.retained - corrupt,
        "faithfulness_F": search.through_F - corrupt,
        "faithfulness_M": search.through_M - corrupt,
        "removal": (search.retained - search.removed)[order],
        "effect": torch.stack([search.exact[edge] for edge in edges], 1) if edges else empty,
    }
    return {name: pooled_effects(change, search.total, seed) for name, change in changes.items()}


def stack_effects(changes: Changes, edges: Sequence[Edge], total: Float[Tensor, " p"]) -> Float[Tensor, "2 e"]:
    """The effects of some edges over all pairs."""
    rows = [changes[edge] for edge in edges]
    stacked = torch.stack(rows, 1) if rows else total.new_zeros(len(DIRECTIONS), 0, len(total))
    return signed_share(stacked.sum(-1), total.sum())


def comparison_fields(search: Search) -> dict[str, Tensor]:
    """How well the estimates agree with the exact effects, over all edges that were tried."""
    exact, estimate = (
        stack_effects(changes, list(search.exact), search.total).flatten()
        for changes in (search.exact, search.estimates)
    )
    return {
        "estimate_correlation": torch.corrcoef(torch.stack([exact, estimate]))[0, 1],
        "estimate_error": (exact - estimate).abs().amax(),
    }


def coordinates(edges: Sequence[Edge], n_layers: int) -> dict[str, Any]:
    """The names of edges and of their ends."""
    return {
        "direction": list(DIRECTIONS),
        "edge": [edge_name(edge, n_layers) for edge in edges],
        "edge_from": ("edge", [node_name(edge.sender, n_layers) for edge in edges]),
        "edge_to": ("edge", [node_name(edge.receiver, n_layers) for edge in edges]),
        "role": ("edge", [edge.role for edge in edges]),
        "through": ("edge", [THROUGH[edge.role] for edge in edges]),
    }


EDGE_DIMS = ("direction", "edge")
CIRCUIT = Analysis(
    name="circuit",
    question="Which heads read which other heads to make this prediction, and through M or through F?",
    ask=circuit,
    needs="model",
    expensive=True,
    see_also=("patch", "composition", "faithfulness"),
    report_runs=(
        ReportRun(
            "patch",
            1,
            options=("other", "answers", "metric", "token", "edges", "tries", "min_effect", "draws"),
            only_with="edges",
        ),
    ),
    fields={
        "effect": Field(EDGE_DIMS, Message("effect of patching this edge alone, as a share of the difference")),
        "estimate": Field(EDGE_DIMS, Message("effect of this edge estimated by the gradient of the metric")),
        "removal": Field(("edge",), Message("faithfulness that the circuit loses without this edge")),
        "composition": Field(
            ("edge",), Message("composition of the two heads from the weights alone, 0 for random operators")
        ),
        "faithfulness": Field((), Message("share of the difference that the circuit alone restores")),
        "faithfulness_null_draws": Field(
            ("draw",), Message("share of the difference that a random circuit with as many edges restores")
        ),
        "faithfulness_F": Field(
            (), Message("the same without edges into queries and keys, so that heads attend as on the other text")
        ),
        "faithfulness_M": Field(
            (), Message("the same without edges into values, so that heads move what they move on the other text")
        ),
        "metric_text": Field((), Message("the metric after this text")),
        "metric_other": Field((), Message("the metric after the other text")),
        "edges_tried": Field((), Message("number of edges that were patched exactly")),
        "edges_total": Field((), Message("number of edges of the model")),
        "estimate_correlation": Field(
            (), Message("correlation of estimated and exact effects over the edges that were tried")
        ),
        "estimate_error": Field((), Message("largest difference between an estimated and an exact effect")),
    },
)
