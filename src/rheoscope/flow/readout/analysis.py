"""What would the model say if it stopped here? Every step of a token through the final norm and the unembedding."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import numbers_at_once, numbers_in_cache
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.components import checked, components
from rheoscope.space.predictions import predictions
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View
from rheoscope.statistics.nulls import successors

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def readout(
    trace: Trace,
    token: int = -1,
    target: int | None = None,
    top: int = 5,
    before: int = 7,
    draws: int = 200,
    seed: int = 0,
) -> "xarray.Dataset":
    """The logit lens: what each step of a token predicts.

    **Answers** "where in the network does the prediction form, and what did it look like before? Does the model predict this
    text at all?"

    **Formula** p_step = softmax(final_norm(x_step) W_U + b), with the model's own final norm and logit cap, in float32.
    The target is the token that the last step finds likeliest, or `target` (a token id).

    Direct logit attribution: logit − mean = Σ_c (c C) D_g (W_U[target] − mean W_U) · scale, over all components c of the
    last point (`rheoscope.space.components`), the scale of the final norm as the model has it, biases as components.

    Earlier places say how well the text is predicted: log p of the token that really comes next, beside the same places with
    what lies between the first and this token in another order, so that every place is asked for another token of the text.

    **Gives** (point): `probability`, `rank` (1 is best), `entropy` and `kl` to the last step (nats); (point, k):
    `top_tokens` (ids), `top_probabilities`; (component): `attribution` of `embed`, `L3.H1`, `L3.mlp`, `L3.bias`, …;
    `logit`, its sum; (elsewhere), at most 64 earlier tokens: `log_probability_next` with its null, and `largest_elsewhere`, the log
    probability of what each finds likeliest, which the target's own can be compared with; (draw): `log_probability_next_drawn`,
    the mean over these places in each draw; (end, token): `likeliest` (ids) and `likeliest_probability` of the token and at
    most `before` tokens before it, at the end of every layer. A model that reads what comes next (an encoder) has no
    `log_probability_next`.

    **Laws** the last step predicts what the model predicts; kl is 0 there and never negative; the attribution sums to the
    logit; all unchanged by a turn of the axes of E that the model follows.

    **Source** the logit lens (nostalgebraist, 2020). Early layers speak another dialect than the unembedding reads: a low
    probability there says that the prediction is not yet written in it, not that nothing is known.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> lens = rs.readout(model.trace("The keys to the cabinet are"))
    >>> float(lens.kl[-1]), int(lens["rank"][-1])
    (0.0, 1)
    """
    token = checked([token], len(trace))[0]
    laws = predictions(trace.view, trace.points[:, token])
    target = int(laws[-1].argmax()) if target is None else target
    _refuse(target, laws.shape[-1], before)
    written, others = attribution(trace, token, target), elsewhere(token)
    ends, there = layer_ends(trace.steps), list(range(max(0, token - before), token + 1))
    values = kernel(laws, torch.tensor(target, device=laws.device), top) | likeliest(trace, ends, there)
    values["attribution"] = torch.stack(list(written.values()))
    values["logit"] = values["attribution"].sum()
    values |= of_earlier(trace, token, others, draws, seed)
    coords: dict[str, Any] = {
        "point": [str(step) for step in trace.steps],
        "component": list(written),
        "elsewhere": others,
        "token": there,
        "word": ("token", [trace.tokens[at] for at in there]),
        "end": [str(trace.steps[at]) for at in ends],
    }
    settings = {"space": "normed", "token": token, "target": target, "draws": draws, "seed": seed}
    return READOUT.answer(values, coords, settings | trace.provenance)


@torch.no_grad()
def batch(
    traces: Traces,
    token: int = -1,
    target: int | None = None,
    top: int = 5,
    before: int = 7,
) -> dict[str, Tensor]:
    """What a token of every text predicts at every step, and what those before it find likeliest: no draws, and who wrote it not."""
    checked([token], traces.shortest)
    device = traces.points.device
    at = torch.tensor([len(words) + token if token < 0 else token for words in traces.tokens])
    here = torch.arange(len(at), device=device), slice(None), at.to(device, non_blocking=True)
    laws = predictions(traces.view, traces.points[here])
    _refuse(0 if target is None else target, laws.shape[-1], before)
    found = laws[:, -1].argmax(-1) if target is None else torch.full_like(here[2], target)
    return kernel(laws, found, top) | likeliest_of(traces, at, before)


def likeliest_of(traces: Traces, at: Int[Tensor, " b"], before: int) -> dict[str, Tensor]:
    """What each of several places of every text finds likeliest at the end of every layer; −1 and NaN elsewhere.

    Places are chosen where texts are counted, on the CPU, so that nobody waits for the device.
    """
    ends, n, device = layer_ends(traces.steps), traces.points.shape[-2], traces.points.device
    places = at[:, None] - torch.arange(min(before + 1, n)).flip(0)
    rows = torch.arange(len(at))[:, None].expand_as(places)
    chosen = torch.stack([rows[places >= 0], places[places >= 0]]).to(device, non_blocking=True)
    ids = torch.full((len(at), len(ends), n), -1, device=device)
    chances = torch.full(ids.shape, torch.nan, dtype=exact(traces.points[:0]).dtype, device=device)
    together = max(1, _points_at_once(traces.view) // max(1, len(chosen[0])))
    for low in range(0, len(ends), together):
        some = torch.tensor(ends[low : low + together])[:, None].to(device, non_blocking=True)
        place = chosen[0], torch.arange(low, low + len(some), device=device)[:, None], chosen[1]
        best = _best(traces.view, traces.points[chosen[0], some, chosen[1]].flatten(0, 1))
        ids[place], chances[place] = (x.unflatten(0, (len(some), -1)) for x in best)
    return {"likeliest": ids, "likeliest_probability": chances}


def kernel(laws: Float[Tensor, "*b p vocabulary"], target: Int[Tensor, "*b"], top: int) -> dict[str, Tensor]:
    """What every point says of a target, from its log probabilities of all tokens."""
    best, last = laws.topk(min(top, laws.shape[-1])), laws[..., -1:, :]
    told = laws.gather(-1, target[..., None, None].expand(*laws.shape[:-1], 1))
    some = max(1, numbers_in_cache(laws.device) // (laws.numel() // laws.shape[-2]))
    points = laws.split(some, -2)
    likelier = [(law > own).sum(-1) for law, own in zip(points, told.split(some, -2), strict=True)]
    return {
        "probability": told[..., 0].exp(),
        "rank": torch.cat(likelier, -1) + 1,
        "entropy": torch.cat([-(law.exp() * law).sum(-1) for law in points], -1),
        "kl": torch.cat([(last.exp() * (last - law)).sum(-1) for law in points], -1).clamp(min=0),
        "top_tokens": best.indices,
        "top_probabilities": best.values.exp(),
    }


def layer_ends(steps: Sequence[Step]) -> list[int]:
    """The embedding, and the end of every layer."""
    return [at for at, step in enumerate(steps) if at == 0 or step.is_end_of_layer]


def likeliest(trace: Trace, ends: list[int], there: list[int]) -> dict[str, Tensor]:
    """What each of several places finds likeliest at the end of every layer; no table of all predictions exists."""
    best = _best(trace.view, trace.points[torch.tensor(ends)[:, None], there].flatten(0, 1))
    shape = (len(ends), len(there))
    return {"likeliest": best.indices.reshape(shape), "likeliest_probability": best.values.reshape(shape)}


class Best(NamedTuple):
    """Ids of the likeliest tokens, and their probabilities."""

    indices: Int[Tensor, " p"]
    values: Float[Tensor, " p"]


def _best(view: View, points: Float[Tensor, "p d"]) -> Best:
    found = [predictions(view, some).max(-1) for some in points.split(_points_at_once(view))]
    return Best(torch.cat([one.indices for one in found]), torch.cat([one.values for one in found]).exp())


def _refuse(target: int, vocabulary: int, before: int) -> None:
    if not 0 <= target < vocabulary:
        raise RheoscopeError(f"the target is a token id from 0 to {vocabulary - 1}, got {target}")
    if before < 0:
        raise RheoscopeError(f"so many tokens before it are 0 or more, got before={before}; type before=7")


def _points_at_once(view: View) -> int:
    assert view.unembed is not None
    return max(1, numbers_at_once(view.unembed.device) // view.unembed.shape[-1])


def elsewhere(token: int, most: int = 64) -> list[int]:
    """Earlier tokens, evenly over the text.

    >>> elsewhere(3), elsewhere(9, 3)
    ([0, 1, 2], [0, 3, 6])
    """
    return list(range(token)) if token <= most else [token * at // most for at in range(most)]


def of_earlier(trace: Trace, token: int, others: list[int], draws: int, seed: int) -> dict[str, Tensor]:
    """What earlier places find likeliest, and how likely they find what comes next, beside the text in other orders."""
    laws, here = predictions(trace.view, trace.points[-1, others]), torch.tensor(others, dtype=torch.long)
    values = {"largest_elsewhere": laws.amax(-1)}
    if trace.view.sees_next:
        return values
    after = torch.cat([here[None] + 1, successors(token + 1, draws, seed)[:, here]])
    words = trace.ids.cpu()[after].to(laws.device)
    told = laws[torch.arange(len(others), device=laws.device), words]
    values["log_probability_next"], null = told[0], told[1:]
    if not draws:
        return values
    return values | {
        "log_probability_next_null": null.mean(0),
        "log_probability_next_null_sd": null.std(0) if draws > 1 and others else torch.full_like(null[0], torch.nan),
        "log_probability_next_drawn": null.mean(-1),
    }


def attribution(trace: Trace, token: int, target: int) -> dict[str, Float[Tensor, ""]]:
    """The target's logit, less the mean of all logits and before a cap, as a sum over all that wrote it."""
    view = trace.view
    assert view.unembed is not None
    made, norm = components(trace, tokens=[token]), view.final_norm
    x = trace.points[-1, token].to(made.parts.dtype)
    towards = (view.unembed[:, target] - view.unembed.mean(-1)).to(x.dtype)
    read = towards if norm.gain is None else norm.gain.to(x.dtype) * towards
    each = norm.centre(made.parts[:, 0]) * norm.scale(x) @ read
    written = dict(zip(made.names, each, strict=True))
    if norm.bias is not None:
        written["final_norm.bias"] = norm.bias.to(x.dtype) @ towards
    if view.unembed_bias is not None:
        written["unembed.bias"] = (view.unembed_bias[target] - view.unembed_bias.mean()).to(x.dtype)
    return written


READOUT = Analysis(
    name="readout",
    question="Where does the prediction form, and who writes it? (the logit lens and direct logit attribution)",
    ask=readout,
    batch=batch,
    needs="trace",
    fields={
        "probability": Field(("point",), "probability of the target, read off this step"),
        "rank": Field(("point",), "how many tokens are likelier than the target at this step, plus 1"),
        "entropy": Field(("point",), "entropy of what this step predicts", unit="nats"),
        "kl": Field(
            ("point",), "KL divergence from what the last step predicts to what this step predicts", unit="nats"
        ),
        "top_tokens": Field(("point", "k"), "ids of the likeliest tokens at this step", names=True),
        "top_probabilities": Field(("point", "k"), "probabilities of the likeliest tokens at this step, falling"),
        "largest_elsewhere": Field(
            ("elsewhere",), "log probability of what an earlier place finds likeliest, at its last step", unit="nats"
        ),
        "log_probability_next": Field(
            ("elsewhere",),
            "log probability, at the last step of an earlier place, of the token that really comes next",
            unit="nats",
            null="log_probability_next_null",
            null_sd="log_probability_next_null_sd",
        ),
        "log_probability_next_null": Field(
            ("elsewhere",),
            "the same of other tokens of the text: all between the first and this one in another order, mean over draws",
            unit="nats",
        ),
        "log_probability_next_null_sd": Field(("elsewhere",), "standard deviation of that over the draws", unit="nats"),
        "log_probability_next_drawn": Field(("draw",), "its mean over the places in each draw", unit="nats"),
        "likeliest": Field(
            ("end", "token"),
            "id of the token that each of the last places finds likeliest to come next, after the embedding and after every layer",
            names=True,
        ),
        "likeliest_probability": Field(("end", "token"), "its probability"),
        "attribution": Field(
            ("component",),
            "what a component writes into the target's logit: its part of x̂ (scale of the final norm frozen) on the "
            "target's column of W_U less the mean of all columns",
        ),
        "logit": Field((), "the target's logit less the mean of all logits, before a cap: the sum of the attribution"),
    },
)
