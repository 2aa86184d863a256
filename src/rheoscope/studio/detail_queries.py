"""Responses about one head or one token: maps, spectra, score components, the logit lens and attributions."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.operators.analysis import copying_score, positive_share, vocabulary_gram
from rheoscope.covers.reversed_attention.analysis import reversed_map
from rheoscope.covers.score_attribution.analysis import score_attribution
from rheoscope.covers.scores.analysis import allowed_pairs
from rheoscope.flow.readout.analysis import attribution, likeliest_tokens
from rheoscope.messages.advice import page_setting
from rheoscope.messages.message import Message
from rheoscope.picture.token_labels import display_token
from rheoscope.running.features import Features
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.components import resolve_positions
from rheoscope.space.operator import RANK_TOLERANCE
from rheoscope.space.predictions import next_token_logprobs
from rheoscope.space.trace import Trace
from rheoscope.studio import wire
from rheoscope.studio.projected_points import Axes, project_cloud, resolve_axes_name

if TYPE_CHECKING:
    from rheoscope.studio.session import Session, TextEntry

MAP_KINDS = ("weights", "scores", "reversed")
MAX_MAP_TOKENS = 1024
N_PAIRS, N_COMPONENTS = 60, 12
"""Number of listed contributions to a score and to a logit. The remainder is one sum."""
N_CANDIDATES = 5
"""Number of candidates for the next token that are listed for every step."""


def pack_cloud(session: "Session", entry: "TextEntry", axes_name: str, space: str) -> bytes:
    """The points of a text on three axes, the variance fractions of the axes, and the predicted point."""
    return pack_points(entry.trace, session.cached_axes(entry, axes_name, space), axes_name, space)


def pack_points(trace: Trace, axes: Axes, axes_name: str, space: str) -> bytes:
    """The points of a text on the given axes."""
    projection = project_cloud(trace, axes, space)
    fractions = [float(fraction) for fraction in projection.variance_fractions]
    name = resolve_axes_name(trace, axes_name)
    header = {"share": sum(fractions), "shares": fractions, "space": space, "axes": name}
    points = wire.to_wire_array(projection.points.cpu().numpy(), ["step", "token", "axis"])
    return wire.pack_envelope(
        header, {"points": points, "star": wire.to_wire_array(projection.predicted_point.cpu().numpy(), ["axis"])}
    )


def pack_head_map(entry: "TextEntry", layer: int, head: int, kind: str, n_levels: int = wire.FINE_LEVELS) -> bytes:
    """Weights, scores or reversed attention of a head, one byte per pair. Masked pairs are missing."""
    if kind not in MAP_KINDS:
        raise RheoscopeError(
            Message("kind must be one of {kinds}, got {received!r}", kinds=", ".join(MAP_KINDS), received=kind[:40]),
            page_setting(f"kind={MAP_KINDS[0]}"),
        )
    heads = entry.trace.view.heads_of(layer, head)
    if len(entry.trace) > MAX_MAP_TOKENS:
        n_tokens = len(entry.trace)
        raise RheoscopeError(
            Message("a map needs at most {limit:,} tokens, got {received:,}", limit=MAX_MAP_TOKENS, received=n_tokens)
        )
    if kind == "reversed":
        pair_values = reversed_map(entry.edited_model, entry.trace, layer, head)
    else:
        pair_values = (entry.trace.weights if kind == "weights" else entry.trace.scores)(layer, head)
    allowed = allowed_pairs(heads, len(entry.trace), pair_values.device)
    values = torch.where(allowed, pair_values.float(), torch.nan).cpu().numpy()
    header = entry.head_facts(layer, head) | {"kind": kind}
    return wire.pack_envelope(header, {"map": wire.quantise(values, ["query", "key"], n_levels)})


@torch.no_grad()
def spectrum_json(entry: "TextEntry", layer: int, head: int) -> dict[str, Any]:
    """The singular values of M and F of a head with its edits, and scalar properties of both."""
    view = entry.trace.view
    head_operators = view.head(layer, head)
    M, F = head_operators.M.at_least_float32(), head_operators.F.at_least_float32()
    gram = None if view.unembed is None else vocabulary_gram(view)
    return {
        "M": [round_significant(value) for value in nonzero_values(M.singular_values())],
        "F": [round_significant(value) for value in nonzero_values(F.singular_values())],
        "symmetry": float(M.symmetry()),
        "positive_share": float(positive_share(M)),
        "copying": float(copying_score(F, gram)),
    }


def nonzero_values(values: Float[Tensor, " r"], tolerance: float = RANK_TOLERANCE) -> list[float]:
    """Singular values above the rounding error. The factors of an edited operator have more columns than its rank.

    >>> nonzero_values(torch.tensor([2.0, 1.0, 1e-9]))
    [2.0, 1.0]
    """
    return values[values > tolerance * values.max()].tolist()


def score_components_json(
    entry: "TextEntry", layer: int, head: int, query: int, key: int, features: Features | None = None
) -> dict[str, Any]:
    """The largest contributions of pairs of components or features (query side, key side) to a score."""
    dataset = score_attribution(entry.trace, layer, head, query, key, features)
    contributions = dataset.contribution.values
    order = np.argsort(-np.abs(contributions), axis=None)
    query_names, key_names = ([str(name) for name in dataset[side].values] for side in ("from", "to"))
    pairs = [divmod(int(flat_index), contributions.shape[1]) for flat_index in order[:N_PAIRS]]
    largest = [
        {
            "name": f"{query_names[a]} → {key_names[b]}",
            "from": query_names[a],
            "to": key_names[b],
            "contribution": float(contributions[a, b]),
        }
        for a, b in pairs
    ]
    remainder = float(contributions.sum()) - sum(component["contribution"] for component in largest)
    score, position_bias, weight = (float(dataset[name]) for name in ("score", "position_bias", "weight"))
    return {"components": largest, "rest": remainder, "position_bias": position_bias, "score": score, "weight": weight}


@torch.no_grad()
def pack_lens(entry: "TextEntry") -> bytes:
    """The logit lens: the most probable next token after every step at every position, with its probability."""
    steps, positions = range(len(entry.trace.steps)), range(len(entry.trace))
    if not entry.trace.view.predicts_tokens:
        raise RheoscopeError(Message("the logit lens needs an unembedding, and this model has none"))
    prediction = likeliest_tokens(entry.trace, list(steps), list(positions))
    token_ids = prediction["predicted_token"].tolist()
    distinct_ids = sorted({token_id for row in token_ids for token_id in row})
    token_labels = dict(zip(distinct_ids, map(display_token, entry.model.token_strings(distinct_ids)), strict=True))
    probability = wire.to_wire_array(prediction["predicted_probability"].cpu().numpy(), ["step", "token"])
    return wire.pack_envelope(
        {"shown": [[token_labels[token_id] for token_id in row] for row in token_ids]}, {"probability": probability}
    )


@torch.no_grad()
def token_json(entry: "TextEntry", position: int) -> dict[str, Any]:
    """The prediction at one position after every step, and the components that write the logit of the last one, if any do."""
    trace = entry.trace
    token_index = resolve_positions([position], len(trace))[0]
    logprobs = next_token_logprobs(trace.view, trace.points[:, token_index])
    top = logprobs.topk(min(N_CANDIDATES, logprobs.shape[-1]))
    lens: list[dict[str, Any]] = [
        {"step": str(step), "top": candidates_json(entry.model, ids.tolist(), values.exp().tolist())}
        for step, ids, values in zip(trace.steps, top.indices, top.values, strict=True)
    ]
    target_id = int(top.indices[-1, 0])
    contributions = {
        component: float(contribution) for component, contribution in attribution(trace, token_index, target_id).items()
    }
    by_size = sorted(contributions, key=lambda component: -abs(contributions[component]))
    largest_components = [
        {"component": component, "logits": round_significant(contributions[component])}
        for component in by_size[:N_COMPONENTS]
    ]
    remainder = round_significant(sum(contributions[component] for component in by_size[N_COMPONENTS:]))
    return {
        "position": token_index,
        "shown": display_token(trace.tokens[token_index]),
        "lens": lens,
        "target": lens[-1]["top"][0]["shown"],
        "written": largest_components,
        "rest": remainder,
    }


@torch.no_grad()
def next_token_json(entry: "TextEntry", step: int, token_ids: list[int]) -> list[dict[str, Any]]:
    """The probabilities of some tokens to come next, after a step."""
    trace = entry.trace
    if step >= len(trace.steps):
        raise RheoscopeError(
            Message("step must be at most {last}, got {received}", last=len(trace.steps) - 1, received=step)
        )
    logprobs = next_token_logprobs(trace.view, trace.points[step, -1:])[0]
    if not token_ids or max(token_ids) >= len(logprobs):
        raise RheoscopeError(Message("ids must be token ids below {count:,}", count=len(logprobs)))
    return candidates_json(entry.model, token_ids, logprobs[token_ids].exp().tolist())


def candidates_json(model: RunnableModel, token_ids: list[int], probabilities: list[float]) -> list[dict[str, Any]]:
    """Candidates for the next token, in the given order."""
    return [
        {"id": token_id, "shown": display_token(token_text), "probability": round_significant(probability)}
        for token_id, token_text, probability in zip(
            token_ids, model.token_strings(token_ids), probabilities, strict=True
        )
    ]


def round_significant(value: float) -> float:
    """A number rounded to five significant digits, to keep the JSON small.

    >>> round_significant(0.123456789), round_significant(-1234.5678)
    (0.12346, -1234.6)
    """
    return float(f"{value:.5g}")
