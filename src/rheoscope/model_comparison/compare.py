"""`rs.compare`: what differs between two models, in their weights, in their flows on texts and in their predictions."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.model_comparison.comparison_fields import FIELDS
from rheoscope.model_comparison.flow_divergence import first_step_beyond
from rheoscope.model_comparison.matching import same_depth
from rheoscope.model_comparison.operator_distance import content_distances, relevance_distances
from rheoscope.model_comparison.shared_parts import SharedParts, shared_parts, token_reason
from rheoscope.model_comparison.text_comparison import TextComparison, compare_text, stack_texts
from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.running.progress import tick
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis
from rheoscope.space.model import Model, as_text_list
from rheoscope.space.settings import Bounds, Choices, Count, Seed, Top
from rheoscope.space.trace import Trace
from rheoscope.space.view import View
from rheoscope.statistics.intervals import bootstrap_t_interval, describe_intervals

if TYPE_CHECKING:
    import xarray

RANKINGS = ("stream_change", "displacement", "attention", "logit_change", "M_distance", "F_distance")
"""The fields by which heads of the same number can be ranked."""
TracePairs = Iterable[tuple[Trace, Trace]]
Values = dict[str, Any]


@torch.no_grad()
def compare(
    model_a: Model,
    model_b: Model,
    texts: Any = None,
    threshold: Annotated[float, Bounds(0.0, 2.0)] = 0.1,
    top: Top = 5,
    rank: Annotated[str, Choices(RANKINGS)] = "stream_change",
    max_tokens: Count = 64,
    seed: Seed = 0,
) -> "xarray.Dataset":
    """What differs between two models: heads, flows and predictions.

    **Question** Which heads changed, at what depth do the flows diverge, and what does each model predict?

    **Formula** Two operators have the distance ‖A − B‖ / √((‖A‖² + ‖B‖²)/2), from r × r products. It is 0 if they are equal and
    about √2 if they are unrelated. `M_distance` is that of M at δ = 0, `M_distance_max` its maximum over the offsets 0, 1, 2, 4, …, 64.
    The behaviour of a head is compared on the points of the first model, which both heads read. A head with equal weights then
    differs by 0, whatever earlier layers do. For `realised_attention` and `realised_displacement` each model reads its own points.
    Heads are ranked by `rank`, by default `stream_change`: the mean of ‖Δ' − Δ‖ relative to the length of the point that it changes.

    **Settings** `texts` is one text or several; without it only weights are compared. `threshold` is the divergence that counts as
    diverged. `top` is the number of predicted tokens. `rank` is the field by which heads are ranked. `max_tokens` is the number of
    tokens whose distances are compared (RSA).

    **Returns** (layer, head): `M_distance`, `M_distance_max`, `F_distance`, `attention`, `displacement`, `displacement_cosine`,
    `stream_change`, `logit_change`, `realised_attention`, `realised_displacement`. (layer): `mlp`. (ranked_head): `change`. (step):
    `divergence`, `shape_change`; scalar `first_step`. Scalars: `kl`, `same_token`, `loss_first`, `loss_second`, `loss_difference`.
    (text, k): the likeliest next tokens. For a single text also (step, token) `token_divergence` and (token) `token_first_step`,
    `token_kl`. Means over several texts have `…_low` and `…_high`, which are NaN for fewer than four texts.

    Models of other shapes, or without common coordinates, have no heads with the same number. Their layers and heads are matched by
    representational similarity: `layer_similarity`, `matched_layer`, `matched_head`, `head_similarity`. Texts that both models do not
    split into the same tokens have no views by token: symmetry and stable ranks of the heads remain. `attrs["reasons"]` says why.

    **Laws** A model compared with itself has 0 everywhere, exactly (cosines and `same_token` have 1). No gauge changes a distance.
    Exchanging the models changes no distance of weights, no `divergence` and no `realised_…` field.

    **Source** Kriegeskorte et al. 2008 (RSA).

    **See also** `over_series` follows one analysis over many checkpoints; `atlas` compares the cards of several models.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> result = rs.compare(model, rs.load(), "The keys to the cabinet are on the table")
    >>> float(result.M_distance.max()), float(result.divergence.max()), float(result.kl)
    (0.0, 0.0, 0.0)
    """
    for model in (model_a, model_b):
        _refuse_pairs(model)
    text_list = [] if texts is None else as_text_list(texts)
    pairs = ((model_a.trace(text), model_b.trace(text)) for text in text_list)
    settings = {"threshold": threshold, "top": top, "rank": rank, "max_tokens": max_tokens, "seed": seed}
    return compare_on_traces((model_a, model_b), pairs, len(text_list), settings)


def _refuse_pairs(model: Model) -> None:
    if isinstance(model, EncoderDecoder):
        raise RheoscopeError(
            Message("compare reads one text at a time, and {model} reads pairs; choose a side", model=model.view.name),
            Advice("rs.compare(rs.source_model(model), rs.source_model(other), texts)"),
        )


@torch.no_grad()
def compare_on_traces(
    models: tuple[Model, Model], pairs: TracePairs, n_texts: int, settings: Values
) -> "xarray.Dataset":
    """The comparison of two models whose texts are traced. `settings` are those of `compare`."""
    views = models[0].view, models[1].view
    shared, total = shared_parts(*views), views[0].layers + n_texts
    values, reasons = weight_values(views, shared, total)
    comparisons: list[TextComparison] = []
    for number, (first, second) in enumerate(pairs, 1):
        reason = token_reason(first, second)
        if reason is not None:
            reasons.append(reason)
            comparisons = []
            break
        comparisons.append(compare_text(first, second, shared, settings["top"], settings["max_tokens"]))
        tick(views[0].layers + number, total)
    coords = head_coordinates(*views)
    if comparisons:
        values |= text_values(comparisons, settings["seed"]) | step_values(comparisons, settings["threshold"])
        values |= matched_values(comparisons, views, settings["seed"])
        coords |= text_coordinates(comparisons, models)
        reasons += [text.vocabulary_reason for text in comparisons if text.vocabulary_reason is not None][:1]
    names, values["change"] = ranked_heads(values, views[0], settings["rank"])
    coords |= {"ranked_head": names}
    attributes = settings | provenance(views, shared, reasons, len(comparisons))
    return COMPARE.label(values, used_coordinates(coords, values), attributes)


# Weights


def weight_values(views: tuple[View, View], shared: SharedParts, total: int) -> tuple[Values, list[str]]:
    """Distances of all heads of the same number, or the invariants of both models' heads; and the reasons for what is missing."""
    if not shared.same_heads:
        return invariant_values(views), [*shared.reasons]
    layers: dict[str, list[Tensor]] = {"M_distance": [], "M_distance_max": [], "F_distance": []}
    reasons: dict[str, str] = {}
    for layer, (first, second) in enumerate(zip(views[0].layer_heads, views[1].layer_heads, strict=True), 1):
        try:
            by_offset = relevance_distances(first, second)
            layers["M_distance"].append(by_offset[0])
            layers["M_distance_max"].append(by_offset.amax(0))
        except RheoscopeError as error:
            reasons["M"] = error.message
        try:
            layers["F_distance"].append(content_distances(first, second))
        except RheoscopeError as error:
            reasons["F"] = error.message
        tick(layer, total)
    values = {name: torch.stack(rows) for name, rows in layers.items() if len(rows) == views[0].layers}
    return values, list(reasons.values())


def invariant_values(views: tuple[View, View]) -> Values:
    """Symmetry of M, and stable ranks of M and F, of every head of each model. None of them depends on coordinates."""
    values: Values = {}
    for name, view in zip(("first", "second"), views, strict=True):
        try:
            forms = [heads.M().at_least_float32() for heads in view.layer_heads]
            values[f"symmetry_{name}"] = torch.stack([M.symmetry().cpu() for M in forms])
            values[f"stable_rank_M_{name}"] = torch.stack([M.stable_rank().cpu() for M in forms])
            contents = [heads.F().at_least_float32() for heads in view.layer_heads]
            values[f"stable_rank_F_{name}"] = torch.stack([F.stable_rank().cpu() for F in contents])
        except RheoscopeError:
            continue
    return values


def ranked_heads(values: Values, view: View, rank: str) -> tuple[list[str], Float[Tensor, " ranked"]]:
    """All heads of the first model, the most changed first, and the number by which they are ranked. Empty without one."""
    if rank in values:
        change = values[rank]
    elif "head_similarity" in values:
        change = 1 - values["head_similarity"]
    else:
        distances = [values[name] for name in ("M_distance", "F_distance") if name in values]
        if not distances:
            return [], torch.zeros(0)
        change = torch.stack(distances).amax(0)
    flat = change.flatten()
    order = flat.argsort(descending=True, stable=True)
    return [f"L{index // view.heads}.H{index % view.heads}" for index in order.tolist()], flat[order]


# Texts


def text_values(comparisons: list[TextComparison], seed: int) -> Values:
    """Means over texts with their intervals, and what is listed for each text or token."""
    tables = stack_texts(comparisons)
    values = with_intervals(tables, seed)
    if all(text.tops for text in comparisons):
        values |= {name: torch.stack([text.tops[name] for text in comparisons]) for name in comparisons[0].tops}
        values |= {f"text_{name}": tables[name] for name in ("kl", "loss_difference") if name in tables}
    return values | (comparisons[0].of_tokens if len(comparisons) == 1 else {})


def with_intervals(tables: dict[str, Tensor], seed: int) -> Values:
    """The mean over the last axis and, for more than one text, both ends of its interval, for every table."""
    values: Values = {name: table.mean(-1) for name, table in tables.items()}
    for name, table in tables.items():
        if table.shape[-1] > 1:
            values[f"{name}_low"], values[f"{name}_high"] = bootstrap_t_interval(table, seed=seed)
    return values


def step_values(comparisons: list[TextComparison], threshold: float) -> Values:
    """The first step beyond the threshold, over all texts and for every token of a single text."""
    if "divergence" not in comparisons[0].means:
        return {}
    mean = torch.stack([text.means["divergence"] for text in comparisons]).mean(0)
    values: Values = {"first_step": first_step_beyond(mean, threshold)}
    if len(comparisons) == 1:
        values["token_first_step"] = first_step_beyond(comparisons[0].of_tokens["token_divergence"], threshold)
    return values


def matched_values(comparisons: list[TextComparison], views: tuple[View, View], seed: int) -> Values:
    """The matched layers and heads, with the mean similarity over texts and its interval."""
    pairs = [text.similarities for text in comparisons if text.similarities is not None]
    if not pairs:
        return {}
    layers, heads = (torch.stack([getattr(pair, name) for pair in pairs], -1).double() for name in ("layers", "heads"))
    depth = same_depth(views[0].layers, views[1].layers)
    best_layer, best_head = layers.mean(-1).argmax(-1), heads.mean(-1).argmax(-1)
    shape = (views[0].layers, views[0].heads)
    tables = {
        "depth_similarity": layers[torch.arange(len(layers)), depth],
        "matched_similarity": layers[torch.arange(len(layers)), best_layer],
        "head_similarity": heads[torch.arange(len(heads)), best_head].unflatten(0, shape),
    }
    return with_intervals(tables, seed) | {
        "layer_similarity": layers.mean(-1),
        "same_depth_layer": depth,
        "matched_layer": best_layer,
        "matched_head_layer": (best_head // views[1].heads).unflatten(0, shape),
        "matched_head": (best_head % views[1].heads).unflatten(0, shape),
    }


# Labels


def head_coordinates(first: View, second: View) -> Values:
    return {
        "layer": range(first.layers),
        "head": range(first.heads),
        "other_layer": range(second.layers),
        "other_head": range(second.heads),
    }


def text_coordinates(comparisons: list[TextComparison], models: tuple[Model, Model]) -> Values:
    """The labels of steps, texts and tokens, and the likeliest tokens as text."""
    first = comparisons[0]
    tops = {
        f"top_{side}": (
            ("text", "k"),
            [model.token_strings(text.tops[f"top_tokens_{side}"]) for text in comparisons],
        )
        for side, model in zip(("first", "second"), models, strict=True)
        if all(text.tops for text in comparisons)
    }
    return tops | {
        "step": first.steps,
        "text": [text.text for text in comparisons],
        "token": range(len(first.tokens)),
        "token_text": (("token",), first.tokens),
    }


def used_coordinates(coords: Values, values: Values) -> Values:
    """The coordinates of the axes that some field has."""
    used = {dim for name in values for dim in FIELDS[name].dims}
    return {
        name: value for name, value in coords.items() if set(value[0] if isinstance(value, tuple) else (name,)) <= used
    }


def _text(fact: Any) -> str:
    """A fact as text. A message keeps its template, so that it can be translated."""
    return fact if isinstance(fact, str) else str(fact)


def provenance(views: tuple[View, View], shared: SharedParts, reasons: list[str], n_texts: int) -> dict[str, Any]:
    """Both models, how their heads correspond, and why some views are missing."""
    sides = {
        f"{name}_{side}": _text(view.facts[name])
        for side, view in zip(("first", "second"), views, strict=True)
        for name in ("model", "weights", "certificate")
        if name in view.facts
    }
    return sides | {
        "heads_matched_by": "number" if shared.same_heads else "similarity",
        "reasons": reasons,
        "texts": n_texts,
        "intervals": describe_intervals(Message("texts"), n_texts),
    }


COMPARE = Analysis(
    name="compare",
    question="What differs between two models: heads, flows, predictions?",
    ask=compare,
    needs="model",
    fields=FIELDS,
)
