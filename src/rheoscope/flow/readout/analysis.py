"""What would the model say if it stopped here? Every step of a token through the final norm and the unembedding."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import block_numel, cache_block_numel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.components import components, resolve_positions
from rheoscope.space.predictions import next_token_logprobs
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.settings import Bounds, Draws, Seed, TokenId, TokenIndex, Top
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View
from rheoscope.statistics.nulls import random_successors

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def readout(
    trace: Trace,
    token: TokenIndex = -1,
    target: TokenId | None = None,
    top: Top = 5,
    before: Annotated[int, Bounds(0, 1_000)] = 7,
    draws: Draws = 200,
    seed: Seed = 0,
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
    probability of what each finds likeliest, which the target's own can be compared with; (draw): `log_probability_next_null_draws`,
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
    token = resolve_positions([token], len(trace))[0]
    log_probs = next_token_logprobs(trace.view, trace.points[:, token])
    target = int(log_probs[-1].argmax()) if target is None else target
    _check_settings(target, log_probs.shape[-1], before)
    contributions, earlier_positions = attribution(trace, token, target), sample_earlier_positions(token)
    end_points, shown_positions = layer_ends(trace.steps), list(range(max(0, token - before), token + 1))
    values = kernel(log_probs, torch.tensor(target, device=log_probs.device), top) | likeliest_tokens(
        trace, end_points, shown_positions
    )
    values["attribution"] = torch.stack(list(contributions.values()))
    values["logit"] = values["attribution"].sum()
    values |= earlier_predictions(trace, token, earlier_positions, draws, seed)
    coords: dict[str, Any] = {
        "point": [str(step) for step in trace.steps],
        "component": list(contributions),
        "elsewhere": earlier_positions,
        "token": shown_positions,
        "token_text": ("token", [trace.tokens[position] for position in shown_positions]),
        "end": [str(trace.steps[point_index]) for point_index in end_points],
    }
    settings = {"space": "normed", "token": token, "target": target, "draws": draws, "seed": seed}
    return READOUT.label(values, coords, settings | trace.provenance)


@torch.no_grad()
def batch(
    traces: Traces,
    token: int = -1,
    target: int | None = None,
    top: int = 5,
    before: int = 7,
) -> dict[str, Tensor]:
    """What a token of every text predicts at every step, and what those before it find likeliest: no draws, and who wrote it not."""
    resolve_positions([token], traces.min_length)
    device = traces.points.device
    positions = torch.tensor([len(token_texts) + token if token < 0 else token for token_texts in traces.tokens])
    selection = torch.arange(len(positions), device=device), slice(None), positions.to(device, non_blocking=True)
    log_probs = next_token_logprobs(traces.view, traces.points[selection])
    _check_settings(0 if target is None else target, log_probs.shape[-1], before)
    targets = log_probs[:, -1].argmax(-1) if target is None else torch.full_like(selection[2], target)
    return kernel(log_probs, targets, top) | likeliest_tokens_batch(traces, positions, before)


def likeliest_tokens_batch(traces: Traces, positions: Int[Tensor, " b"], before: int) -> dict[str, Tensor]:
    """What each of several places of every text finds likeliest at the end of every layer; −1 and NaN elsewhere.

    Places are chosen where texts are counted, on the CPU, so that nobody waits for the device.
    """
    end_points, n, device = layer_ends(traces.steps), traces.points.shape[-2], traces.points.device
    shown_positions = positions[:, None] - torch.arange(min(before + 1, n)).flip(0)
    rows = torch.arange(len(positions))[:, None].expand_as(shown_positions)
    text_and_position = torch.stack([rows[shown_positions >= 0], shown_positions[shown_positions >= 0]]).to(
        device, non_blocking=True
    )
    token_ids = torch.full((len(positions), len(end_points), n), -1, device=device)
    probabilities = torch.full(
        token_ids.shape, torch.nan, dtype=at_least_float32(traces.points[:0]).dtype, device=device
    )
    ends_per_chunk = max(1, _points_per_chunk(traces.view) // max(1, len(text_and_position[0])))
    for start in range(0, len(end_points), ends_per_chunk):
        end_chunk = torch.tensor(end_points[start : start + ends_per_chunk])[:, None].to(device, non_blocking=True)
        target_index = (
            text_and_position[0],
            torch.arange(start, start + len(end_chunk), device=device)[:, None],
            text_and_position[1],
        )
        best = _likeliest(
            traces.view, traces.points[text_and_position[0], end_chunk, text_and_position[1]].flatten(0, 1)
        )
        token_ids[target_index], probabilities[target_index] = (x.unflatten(0, (len(end_chunk), -1)) for x in best)
    return {"likeliest": token_ids, "likeliest_probability": probabilities}


def kernel(log_probs: Float[Tensor, "*b p vocabulary"], target: Int[Tensor, "*b"], top: int) -> dict[str, Tensor]:
    """What every point says of a target, from its log probabilities of all tokens."""
    top_log_probs, final_log_probs = log_probs.topk(min(top, log_probs.shape[-1])), log_probs[..., -1:, :]
    target_log_prob = log_probs.gather(-1, target[..., None, None].expand(*log_probs.shape[:-1], 1))
    points_per_chunk = max(1, cache_block_numel(log_probs.device) // (log_probs.numel() // log_probs.shape[-2]))
    chunks = log_probs.split(points_per_chunk, -2)
    n_likelier = [
        (chunk > target_chunk).sum(-1)
        for chunk, target_chunk in zip(chunks, target_log_prob.split(points_per_chunk, -2), strict=True)
    ]
    return {
        "probability": target_log_prob[..., 0].exp(),
        "rank": torch.cat(n_likelier, -1) + 1,
        "entropy": torch.cat([-(chunk.exp() * chunk).sum(-1) for chunk in chunks], -1),
        "kl": torch.cat([(final_log_probs.exp() * (final_log_probs - chunk)).sum(-1) for chunk in chunks], -1).clamp(
            min=0
        ),
        "top_tokens": top_log_probs.indices,
        "top_probabilities": top_log_probs.values.exp(),
    }


def layer_ends(steps: Sequence[Step]) -> list[int]:
    """The embedding, and the end of every layer."""
    return [index for index, step in enumerate(steps) if index == 0 or step.is_end_of_layer]


def likeliest_tokens(trace: Trace, end_points: list[int], positions: list[int]) -> dict[str, Tensor]:
    """What each of several places finds likeliest at the end of every layer; no table of all predictions exists."""
    best = _likeliest(trace.view, trace.points[torch.tensor(end_points)[:, None], positions].flatten(0, 1))
    shape = (len(end_points), len(positions))
    return {"likeliest": best.indices.reshape(shape), "likeliest_probability": best.values.reshape(shape)}


class LikeliestTokens(NamedTuple):
    """Ids of the likeliest tokens, and their probabilities."""

    indices: Int[Tensor, " p"]
    values: Float[Tensor, " p"]


def _likeliest(view: View, points: Float[Tensor, "p d"]) -> LikeliestTokens:
    maxima = [next_token_logprobs(view, chunk).max(-1) for chunk in points.split(_points_per_chunk(view))]
    return LikeliestTokens(
        torch.cat([maximum.indices for maximum in maxima]), torch.cat([maximum.values for maximum in maxima]).exp()
    )


def _check_settings(target: int, vocabulary: int, before: int) -> None:
    if not 0 <= target < vocabulary:
        raise RheoscopeError(f"the target is a token id from 0 to {vocabulary - 1}, got {target}")
    if before < 0:
        raise RheoscopeError(f"so many tokens before it are 0 or more, got before={before}; type before=7")


def _points_per_chunk(view: View) -> int:
    assert view.unembed is not None
    return max(1, block_numel(view.unembed.device) // view.unembed.shape[-1])


def sample_earlier_positions(token: int, max_positions: int = 64) -> list[int]:
    """Earlier tokens, evenly over the text.

    >>> sample_earlier_positions(3), sample_earlier_positions(9, 3)
    ([0, 1, 2], [0, 3, 6])
    """
    return (
        list(range(token))
        if token <= max_positions
        else [token * index // max_positions for index in range(max_positions)]
    )


def earlier_predictions(trace: Trace, token: int, positions: list[int], draws: int, seed: int) -> dict[str, Tensor]:
    """What earlier places find likeliest, and how likely they find what comes next, beside the text in other orders."""
    log_probs, position_index = (
        next_token_logprobs(trace.view, trace.points[-1, positions]),
        torch.tensor(positions, dtype=torch.long),
    )
    values = {"largest_elsewhere": log_probs.amax(-1)}
    if trace.view.is_bidirectional:
        return values
    next_positions = torch.cat([position_index[None] + 1, random_successors(token + 1, draws, seed)[:, position_index]])
    next_ids = trace.ids.cpu()[next_positions].to(log_probs.device)
    next_log_probs = log_probs[torch.arange(len(positions), device=log_probs.device), next_ids]
    values["log_probability_next"], null = next_log_probs[0], next_log_probs[1:]
    if not draws:
        return values
    return values | {
        "log_probability_next_null": null.mean(0),
        "log_probability_next_null_sd": null.std(0) if draws > 1 and positions else torch.full_like(null[0], torch.nan),
        "log_probability_next_null_draws": null.mean(-1),
    }


def attribution(trace: Trace, token: int, target: int) -> dict[str, Float[Tensor, ""]]:
    """The target's logit, less the mean of all logits and before a cap, as a sum over all that wrote it."""
    view = trace.view
    assert view.unembed is not None
    residual_parts, norm = components(trace, tokens=[token]), view.final_norm
    x = trace.points[-1, token].to(residual_parts.parts.dtype)
    logit_direction = (view.unembed[:, target] - view.unembed.mean(-1)).to(x.dtype)
    gained_direction = logit_direction if norm.gain is None else norm.gain.to(x.dtype) * logit_direction
    part_logits = norm.centre(residual_parts.parts[:, 0]) * norm.scale(x) @ gained_direction
    contributions = dict(zip(residual_parts.names, part_logits, strict=True))
    if norm.bias is not None:
        contributions["final_norm.bias"] = norm.bias.to(x.dtype) @ logit_direction
    if view.unembed_bias is not None:
        contributions["unembed.bias"] = (view.unembed_bias[target] - view.unembed_bias.mean()).to(x.dtype)
    return contributions


READOUT = Analysis(
    name="readout",
    question="Where does the prediction form, and who writes it? (the logit lens and direct logit attribution)",
    ask=readout,
    batch=batch,
    needs="trace",
    corpus=2,
    fields={
        "probability": Field(("point",), "probability of the target, read off this step"),
        "rank": Field(("point",), "how many tokens are likelier than the target at this step, plus 1"),
        "entropy": Field(("point",), "entropy of what this step predicts", unit="nats"),
        "kl": Field(
            ("point",), "KL divergence from what the last step predicts to what this step predicts", unit="nats"
        ),
        "top_tokens": Field(("point", "k"), "ids of the likeliest tokens at this step", is_categorical=True),
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
        "log_probability_next_null_draws": Field(("draw",), "its mean over the places in each draw", unit="nats"),
        "likeliest": Field(
            ("end", "token"),
            "id of the token that each of the last places finds likeliest to come next, after the embedding and after every layer",
            is_categorical=True,
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
