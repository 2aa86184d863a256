"""What kind of head is it? Previous-token, induction, duplicate-token, sink, local, uniform, by the usual scores."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.covers.scores import permitted
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.head import Heads, of_head
from rheoscope.space.model import Model, check_made_by
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

SHARP = ("previous_token", "induction", "duplicate_token", "sink")


@torch.no_grad()
def head_types(
    model: Model,
    trace: Trace | None = None,
    threshold: float = 0.4,
    reach: int = 5,
    tokens: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """The usual names of heads, with the scores behind them.

    **Answers** "is this an induction head, a previous-token head, a sink?" Without a Trace the model reads `tokens` random
    tokens (64, or as many as it can) twice over, the usual probe: nothing but the repetition can be known of it. With a Trace, its
    own repetitions count.

    **Formula** each score's is in its `attrs["definition"]`. Rows that may see fewer than 2 · `reach` keys have no say in
    `local` and `uniform`. A type is given where its score is at least `threshold` (`uniform`: 0.9) and twice that of equal
    weights.

    **Gives** (layer, head): `type` and the six scores; (layer): the score of equal weights for each.

    **Laws** scores lie in [0, 1]; unchanged by every move that leaves the logits unchanged.

    **Source** transformer-circuits.pub/2022/in-context-learning-and-induction-heads.

    >>> import rheoscope as rs
    >>> found = rs.head_types(rs.load(), tokens=20)
    >>> found.type.dims, bool((found.sink <= 1).all())
    (('layer', 'head'), True)
    """
    if not 0 < threshold <= 1 or reach < 1:
        raise RheoscopeError(
            f"a threshold lies in (0, 1] and a reach is 1 token or more, got {threshold} and {reach}; "
            "type threshold=0.4, reach=5"
        )
    if trace is None:
        vocabulary, context = len(model.view.embed), model.view.context or 128
        tokens = min(64, vocabulary, context // 2) if tokens is None else tokens
        trace, probe = model.trace(repeated(vocabulary, tokens, seed)), f"{tokens} random tokens, twice"
    else:
        check_made_by(model, trace)
        probe = "the text"
    rows = []
    for layer, heads in enumerate(model.view.blocks):
        rows.append(kernel(heads, trace.read_by(layer), trace.ids, reach))
        if progress is not None:
            progress(layer + 1, model.view.layers)
    values: dict[str, Any] = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    values["type"] = named({name: x.cpu() for name, x in values.items()}, threshold)
    coords = {"layer": range(model.view.layers), "head": range(model.view.heads)}
    attributes = {"probe": probe, "threshold": threshold, "reach": reach, "seed": seed}
    return HEAD_TYPES.answer(values, coords, attributes | trace.provenance)


def repeated(vocabulary: int, tokens: int, seed: int) -> Int[Tensor, " n"]:
    """Different random tokens, then the same again."""
    if not 2 <= tokens <= vocabulary:
        raise RheoscopeError(
            f"the probe has 2 to {vocabulary} different tokens (the vocabulary), got {tokens}; type tokens={min(64, vocabulary)}"
        )
    return torch.randperm(vocabulary, generator=torch.Generator().manual_seed(seed))[:tokens].repeat(2)


def kernel(heads: Heads, x: Float[Tensor, "n d"], ids: Int[Tensor, " n"], reach: int) -> dict[str, Tensor]:
    """The scores of all heads of a layer, one map of weights at a time, and those of equal weights."""
    q, k, _ = heads.read(x)
    allowed = permitted(heads, len(x), x.device)
    kinds = where(ids.to(x.device), allowed, reach)
    rows = []
    for head in range(heads.count):
        weights = of_head(heads.mechanism, head).weights(*heads.one(q, k, head))[0, 0]
        rows.append(of_weights(weights, allowed, kinds, reach))
    equal = of_weights(allowed / allowed.sum(-1, keepdim=True).clamp(min=1), allowed, kinds, reach)
    found = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return found | {f"{name}_null": value for name, value in equal.items() if name != "uniform"}


def where(ids: Int[Tensor, " n"], allowed: Bool[Tensor, "n n"], reach: int) -> dict[str, Bool[Tensor, "n n"]]:
    """Which keys each score counts, for every query."""
    at = torch.arange(len(ids), device=ids.device)
    back = at[:, None] - at
    earlier = (ids[:, None] == ids) & (back > 0)
    after = torch.zeros_like(earlier)
    after[:, 1:] = earlier[:, :-1] & (back[:, 1:] > 0)
    found = {
        "previous_token": back == 1,
        "induction": after,
        "duplicate_token": earlier,
        "sink": (at == 0) & (back != 0),
        "local": back.abs() < reach,
    }
    return {name: keys & allowed for name, keys in found.items()}


def of_weights(
    weights: Float[Tensor, "n n"], allowed: Bool[Tensor, "n n"], kinds: dict[str, Bool[Tensor, "n n"]], reach: int
) -> dict[str, Float[Tensor, ""]]:
    """The scores of one map: means over the queries that have a key of that kind."""
    count = allowed.sum(-1)
    wide = count >= 2 * reach
    found = {}
    for name, keys in kinds.items():
        rows = keys.any(-1) & (wide if name == "local" else True)
        found[name] = (weights.double() * keys).sum(-1)[rows].mean()
    entropy = torch.special.entr(weights.double()).sum(-1) / count.clamp(min=2).double().log()
    return found | {"uniform": entropy[wide & (count > 1)].mean()}


def named(scores: dict[str, Tensor], threshold: float) -> np.ndarray:
    """The type of every head."""

    def reached(name: str) -> Tensor:
        return (scores[name] >= threshold) & (scores[name] >= 2 * scores[f"{name}_null"][:, None])

    sharp = torch.stack([torch.where(reached(name), scores[name], 0) for name in SHARP])
    best = sharp.argmax(0)
    names = np.array([*SHARP, "local", "uniform", "mixed"])
    rest = torch.where(reached("local"), 4, torch.where(scores["uniform"] >= 0.9, 5, 6))
    return names[torch.where(sharp.amax(0) > 0, best, rest).numpy()]


OF_KIND = {
    "previous_token": "mean weight on the token just before",
    "induction": "mean weight on the tokens that followed earlier occurrences of the same token; NaN where nothing repeats",
    "duplicate_token": "mean weight on earlier occurrences of the same token; NaN where nothing repeats",
    "sink": "mean weight on the first token",
    "local": "mean weight on the tokens within reach, itself among them",
}
HEAD_TYPES = Analysis(
    name="head_types",
    question="What kind of head is it: previous-token, induction, duplicate-token, sink, local, uniform?",
    ask=head_types,
    needs="model",
    fields={
        "type": Field(
            ("layer", "head"),
            "previous_token, induction, duplicate_token or sink, the largest that reaches the threshold; else local, uniform or mixed",
        )
    }
    | {name: Field(("layer", "head"), definition, null=f"{name}_null") for name, definition in OF_KIND.items()}
    | {
        "uniform": Field(
            ("layer", "head"),
            "mean of the entropy over the log of the number of permitted keys: 1 where all weights are equal",
        )
    }
    | {f"{name}_null": Field(("layer",), f"{name} of equal weights on all permitted keys") for name in OF_KIND},
)
