"""What one head or one token of a text is asked on the page: maps, spectra, why a score, the lens, who wrote a logit."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.operators.analysis import copying, positive_share, vocabulary_gram
from rheoscope.covers.reversed_attention.analysis import reversed_map
from rheoscope.covers.score_attribution.analysis import score_attribution
from rheoscope.covers.scores.analysis import permitted
from rheoscope.flow.readout.analysis import attribution, likeliest
from rheoscope.picture.token_labels import shown
from rheoscope.shapes import RheoscopeError
from rheoscope.space.components import checked
from rheoscope.space.predictions import predictions
from rheoscope.space.trace import Trace
from rheoscope.studio import wire
from rheoscope.studio.projected_points import Axes, projected

if TYPE_CHECKING:
    from rheoscope.studio.session import Entry, Session

KINDS = ("weights", "scores", "reversed")
LARGEST_MAP = 1024
PAIRS, WRITERS = 60, 12
"""Pairs of components that a score is told as, and components that a logit is; the rest is one sum."""


def cloud(session: "Session", entry: "Entry", axes: str, space: str) -> bytes:
    """The text as points on three axes, the share of variance that they show, and the star of the prediction."""
    return points_on(entry.trace, session.axes(entry, axes, space), axes, space)


def points_on(trace: Trace, on: Axes, axes: str, space: str) -> bytes:
    """A text as points on axes that are known, by their name."""
    seen = projected(trace, on, space)
    shares = [float(one) for one in seen.shares]
    header = {"share": sum(shares), "shares": shares, "space": space, "axes": axes}
    points = wire.as_array(seen.points.cpu().numpy(), ["step", "token", "axis"])
    return wire.packed(header, {"points": points, "star": wire.as_array(seen.star.cpu().numpy(), ["axis"])})


def head_map(entry: "Entry", layer: int, head: int, kind: str, steps: int = wire.FINE) -> bytes:
    """Weights, scores or reversed attention of a head, a byte a pair; what a query may not see is missing."""
    if kind not in KINDS:
        raise RheoscopeError(f"unknown kind {kind[:40]!r}; type one of {', '.join(KINDS)}")
    heads = entry.trace.view.heads_of(layer, head)
    if len(entry.trace) > LARGEST_MAP:
        raise RheoscopeError(f"a map has at most {LARGEST_MAP} tokens, this text has {len(entry.trace)}")
    if kind == "reversed":
        found = reversed_map(entry.edited, entry.trace, layer, head)
    else:
        found = (entry.trace.weights if kind == "weights" else entry.trace.scores)(layer, head)
    seen = permitted(heads, len(entry.trace), found.device)
    values = torch.where(seen, found.float(), torch.nan).cpu().numpy()
    header = entry.about(layer, head) | {"kind": kind}
    return wire.packed(header, {"map": wire.in_bytes(values, ["query", "key"], steps)})


@torch.no_grad()
def spectrum(entry: "Entry", layer: int, head: int) -> dict[str, Any]:
    """The singular values of M and of F of a head, under the edits, and what kind of operators they are."""
    view = entry.trace.view
    one = view.head(layer, head)
    M, F = one.M.exact(), one.F.exact()
    through = None if view.unembed is None else vocabulary_gram(view)
    return {
        "M": [rounded(one) for one in there(M.singular_values())],
        "F": [rounded(one) for one in there(F.singular_values())],
        "symmetry": float(M.symmetry()),
        "positive_share": float(positive_share(M)),
        "copying": float(copying(F, through)),
    }


def there(values: Float[Tensor, " r"], least: float = 1e-6) -> list[float]:
    """Singular values that are not 0 but for rounding: those of an edited operator have more columns than it has rank.

    >>> there(torch.tensor([2.0, 1.0, 1e-9]))
    [2.0, 1.0]
    """
    return values[values > least * values.max()].tolist()


def why(entry: "Entry", layer: int, head: int, query: int, key: int) -> dict[str, Any]:
    """Which components, on the query's and on the key's side, make a score; the largest first."""
    found = score_attribution(entry.trace, layer, head, query, key)
    table = found.contribution.values
    order = np.argsort(-np.abs(table), axis=None)
    names = [str(name) for name in found["from"].values]
    pairs = [divmod(int(at), table.shape[1]) for at in order[:PAIRS]]
    told = [
        {"name": f"{names[a]} → {names[b]}", "from": names[a], "to": names[b], "contribution": float(table[a, b])}
        for a, b in pairs
    ]
    rest = float(table.sum()) - sum(one["contribution"] for one in told)
    score, bias, weight = (float(found[name]) for name in ("score", "position_bias", "weight"))
    return {"components": told, "rest": rest, "position_bias": bias, "score": score, "weight": weight}


@torch.no_grad()
def lens(entry: "Entry") -> bytes:
    """What every token finds likeliest to come next after every step: its probability, and the token as it is shown."""
    steps, tokens = range(len(entry.trace.steps)), range(len(entry.trace))
    if entry.trace.view.unembed is None:
        raise RheoscopeError("this model has no unembedding, so nothing can be read out; choose a language model")
    found = likeliest(entry.trace, list(steps), list(tokens))
    ids = found["likeliest"].tolist()
    known = sorted({one for row in ids for one in row})
    words = dict(zip(known, map(shown, entry.model.words(known)), strict=True))
    probability = wire.as_array(found["likeliest_probability"].cpu().numpy(), ["step", "token"])
    return wire.packed({"shown": [[words[one] for one in row] for row in ids]}, {"probability": probability})


@torch.no_grad()
def token(entry: "Entry", position: int) -> dict[str, Any]:
    """What one token predicts after every step, and who wrote the logit of what it predicts in the end."""
    trace = entry.trace
    at = checked([position], len(trace))[0]
    laws = predictions(trace.view, trace.points[:, at])
    best = laws.max(-1)
    words = entry.model.words(best.indices.tolist())
    lens = [
        {"step": str(step), "shown": shown(word), "probability": rounded(float(p))}
        for step, word, p in zip(trace.steps, words, best.values.exp(), strict=True)
    ]
    target = int(best.indices[-1])
    parts = {name: float(part) for name, part in attribution(trace, at, target).items()}
    largest = sorted(parts, key=lambda name: -abs(parts[name]))
    written = [{"component": name, "logits": rounded(parts[name])} for name in largest[:WRITERS]]
    rest = rounded(sum(parts[name] for name in largest[WRITERS:]))
    return {
        "position": at,
        "shown": shown(trace.tokens[at]),
        "lens": lens,
        "target": lens[-1]["shown"],
        "written": written,
        "rest": rest,
    }


def rounded(value: float) -> float:
    """Five digits that count, as JSON that is read by people needs no more.

    >>> rounded(0.123456789), rounded(-1234.5678)
    (0.12346, -1234.6)
    """
    return float(f"{value:.5g}")
