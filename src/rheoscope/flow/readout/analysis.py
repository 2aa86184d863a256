"""The logit lens and direct logit attribution: what every step of a token predicts, and which component writes it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import block_numel, cache_block_numel
from rheoscope.flow.readout.source_reading import source_coords, source_values
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.running.feature_components import feature_components
from rheoscope.running.feature_terms import shares_of_parts
from rheoscope.running.features import Features
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.components import components, resolve_positions
from rheoscope.space.predictions import next_token_logits, next_token_logprobs
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.settings import Bounds, Draws, Seed, TokenId, TokenIndex, Top
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View
from rheoscope.statistics.nulls import random_successors

if TYPE_CHECKING:
    import xarray

MIN_POINTS_PER_CHUNK = 64
"""The unembedding is read once per chunk. With fewer points, reading it takes longer than the product."""


@torch.no_grad()
def readout(
    trace: Trace,
    token: TokenIndex = -1,
    target: TokenId | None = None,
    top: Top = 5,
    tokens_before: Annotated[int, Bounds(0, 1_000)] = 7,
    draws: Draws = 200,
    seed: Seed = 0,
    features: Features | None = None,
) -> "xarray.Dataset":
    """The logit lens: what each step of a token predicts, and which components write the final logit.

    **Question** Where in the network does the prediction form, which components write it, and does the model predict this text?

    **Formula** p_step = softmax(final_norm(x_step) W_U + b), with the model's own final norm and logit cap, in float32. The
    target is the most likely token at the last step, unless `target` gives another one.

    Direct logit attribution: logit − mean = Σ_c (c C) D_g (W_U[target] − mean W_U) · scale. The sum runs over all components c of
    the last point (`rheoscope.space.components`), including biases. The scale of the final norm is fixed.

    To measure how well the text is predicted, earlier tokens report log p of the token that comes next: all of them if they are at
    most 64, else 64 at equal distances, which `earlier_token` lists. The null
    permutes the tokens between the first one and this one, so that every position predicts another token of the text.

    **Returns** (point): `probability`, `rank` (1 is best), `entropy`, and `kl` from the last step (nats). (point, k): `top_tokens`
    (ids), `top_probabilities`. (component): `attribution` of `embed`, `L3.H1`, `L3.mlp`, `L3.bias`, …; `logit_above_mean` is
    its sum. Scalar: `logit`, the model's own. (earlier_token): `log_probability_next` with its null, and
    `predicted_log_probability`, the largest log probability, for comparison with the target's. (draw):
    `log_probability_next_null_draws`, means over these tokens. (end, token): `predicted_token` (ids) and `predicted_probability` at
    the end of every layer. A bidirectional model (an encoder) has no `log_probability_next`. A masked language model has no
    `attribution`: it transforms the last points before its unembedding, so no component writes a fixed amount.
    For the target of an encoder-decoder, (cross_head, source_token): `source_weight`, and (cross_head): `source_path_share`,
    describe what `token` reads from the source. `cross_path_share` is the share of cross-attention in its path.

    **Settings** `target` is a token id. `top` is the number of listed tokens. `tokens_before` is the number of tokens before
    `token` whose predictions are listed. `features` is a dictionary (`rs.Features.load`): its features `f12`, `f40`, …, its
    constant `features.bias` and its `features.error` replace the components that it describes, and `feature_share`, `error_share`
    and `rest_share` are their shares of `logit_above_mean`.

    **Laws** The last step predicts what the model predicts. `kl` is 0 there and never negative. The attribution sums to
    `logit_above_mean`. Rotating E together with the model changes nothing.

    **Source** the logit lens (nostalgebraist, 2020). Early layers need not use the directions that the unembedding reads. A low
    probability there means that the prediction is not yet readable, not that the layer has no information.

    >>> import rheoscope as rs
    >>> lens = rs.readout(rs.load().trace("The keys to the cabinet are"))
    >>> float(lens.kl[-1]), int(lens["rank"][-1])
    (0.0, 1)
    """
    token = resolve_positions([token], len(trace))[0]
    logits = next_token_logits(trace.view, trace.points[:, token])
    log_probs = logits.log_softmax(-1)
    target = int(log_probs[-1].argmax()) if target is None else target
    _check_settings(target, log_probs.shape[-1], tokens_before)
    contributions, earlier_positions = attribution(trace, token, target, features), sample_earlier_positions(token)
    end_points, shown_positions = layer_ends(trace.steps), list(range(max(0, token - tokens_before), token + 1))
    values = kernel(log_probs, torch.tensor(target, device=log_probs.device), top)
    values |= with_last_token(likeliest_tokens(trace, end_points, shown_positions[:-1]), log_probs[end_points])
    values |= {"logit": logits[-1, target], "logit_above_mean": logits[-1, target] - logits[-1].mean()}
    if contributions:
        values["attribution"] = torch.stack(list(contributions.values()))
        values["logit_above_mean"] = values["attribution"].sum()
        values |= {} if features is None else shares_of_parts(values["attribution"], list(contributions))
    values |= earlier_predictions(trace, token, earlier_positions, draws, seed) | source_values(trace, token)
    coords: dict[str, Any] = {
        "point": [str(step) for step in trace.steps],
        "component": list(contributions),
        "earlier_token": earlier_positions,
        "token": shown_positions,
        "token_text": ("token", [trace.tokens[position] for position in shown_positions]),
        "end": [str(trace.steps[point_index]) for point_index in end_points],
        **source_coords(trace),
    }
    settings = {"space": "normed", "token": token, "target": target, "draws": draws, "seed": seed}
    settings |= {} if features is None else features.provenance
    return READOUT.label(values, coords, settings | trace.provenance)


@torch.no_grad()
def batch(
    traces: Traces,
    token: int = -1,
    target: int | None = None,
    top: int = 5,
    tokens_before: int = 7,
) -> dict[str, Tensor]:
    """The predictions of one token of every text at every step and of the tokens before it; no attribution and no null."""
    resolve_positions([token], traces.min_length)
    device = traces.points.device
    positions = torch.tensor([len(token_texts) + token if token < 0 else token for token_texts in traces.tokens])
    selection = torch.arange(len(positions), device=device), slice(None), positions.to(device, non_blocking=True)
    log_probs = next_token_logprobs(traces.view, traces.points[selection])
    _check_settings(0 if target is None else target, log_probs.shape[-1], tokens_before)
    targets = log_probs[:, -1].argmax(-1) if target is None else torch.full_like(selection[2], target)
    return kernel(log_probs, targets, top) | likeliest_tokens_batch(traces, positions, tokens_before)


def likeliest_tokens_batch(traces: Traces, positions: Int[Tensor, " b"], tokens_before: int) -> dict[str, Tensor]:
    """The most likely next token of several positions of every text at the end of every layer; −1 and NaN at other positions.

    The positions are computed on the CPU, so that Python does not wait for the device.
    """
    end_points, n, device = layer_ends(traces.steps), traces.points.shape[-2], traces.points.device
    shown_positions = positions[:, None] - torch.arange(min(tokens_before + 1, n)).flip(0)
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
    return {"predicted_token": token_ids, "predicted_probability": probabilities}


def kernel(log_probs: Float[Tensor, "*b p vocabulary"], target: Int[Tensor, "*b"], top: int) -> dict[str, Tensor]:
    """Probability and rank of the target, entropy, KL and top tokens of every point, from its log probabilities."""
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
    """The indices of the embedding and of the end of every layer."""
    return [index for index, step in enumerate(steps) if index == 0 or step.is_end_of_layer]


def likeliest_tokens(trace: Trace, end_points: list[int], positions: list[int]) -> dict[str, Tensor]:
    """The most likely next token of several positions at the end of every layer, computed in chunks to limit memory."""
    best = _likeliest(trace.view, trace.points[torch.tensor(end_points)[:, None], positions].flatten(0, 1))
    shape = (len(end_points), len(positions))
    return {"predicted_token": best.indices.reshape(shape), "predicted_probability": best.values.reshape(shape)}


def with_last_token(
    earlier: dict[str, Tensor], log_probs: Float[Tensor, "end vocabulary"]
) -> dict[str, Float[Tensor, "end n"] | Int[Tensor, "end n"]]:
    """`likeliest_tokens` of earlier positions and of one more, whose log probabilities are known."""
    last = log_probs.max(-1, keepdim=True)
    return {
        "predicted_token": torch.cat([earlier["predicted_token"], last.indices], -1),
        "predicted_probability": torch.cat([earlier["predicted_probability"], last.values.exp()], -1),
    }


class LikeliestTokens(NamedTuple):
    """The ids of the most likely tokens, and their probabilities."""

    indices: Int[Tensor, " p"]
    values: Float[Tensor, " p"]


def _likeliest(view: View, points: Float[Tensor, "p d"]) -> LikeliestTokens:
    maxima = [next_token_logprobs(view, chunk).max(-1) for chunk in points.split(_points_per_chunk(view))]
    return LikeliestTokens(
        torch.cat([maximum.indices for maximum in maxima]), torch.cat([maximum.values for maximum in maxima]).exp()
    )


def _check_settings(target: int, vocabulary: int, tokens_before: int) -> None:
    if not 0 <= target < vocabulary:
        raise RheoscopeError(
            Message(
                "target must be a token id between 0 and {last}, got {received}", last=vocabulary - 1, received=target
            ),
            use(target=0),
        )
    if tokens_before < 0:
        raise RheoscopeError(
            Message("tokens_before must be at least {low}, got {received}", low=0, received=tokens_before),
            use(tokens_before=7),
        )


def _points_per_chunk(view: View) -> int:
    return max(MIN_POINTS_PER_CHUNK, block_numel(view.embed.device) // len(view.embed))


def sample_earlier_positions(token: int, max_positions: int = 64) -> list[int]:
    """Evenly spaced earlier positions.

    >>> sample_earlier_positions(3), sample_earlier_positions(9, 3)
    ([0, 1, 2], [0, 3, 6])
    """
    return (
        list(range(token))
        if token <= max_positions
        else [token * index // max_positions for index in range(max_positions)]
    )


def earlier_predictions(trace: Trace, token: int, positions: list[int], draws: int, seed: int) -> dict[str, Tensor]:
    """Log probabilities of the most likely and of the actual next token at earlier positions, with the permutation null."""
    log_probs, position_index = (
        next_token_logprobs(trace.view, trace.points[-1, positions]),
        torch.tensor(positions, dtype=torch.long),
    )
    values = {"predicted_log_probability": log_probs.amax(-1)}
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


def attribution(
    trace: Trace, token: int, target: int, features: Features | None = None
) -> dict[str, Float[Tensor, ""]]:
    """The target's logit, minus the mean logit and before a cap, as a sum over components. Empty for a masked language model.

    A dictionary's features, its constant and its error replace the components that it describes.
    """
    view = trace.view
    if view.unembed is None:
        return {}
    norm = view.final_norm
    residual_parts = (
        components(trace, tokens=[token]) if features is None else feature_components(trace, features, tokens=[token])
    )
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
    question="Where does the prediction form, and which components write it? (logit lens, direct logit attribution)",
    ask=readout,
    batch=batch,
    needs="trace",
    corpus=2,
    atlas=("entropy", "kl"),
    fields={
        "probability": Field(("point",), "probability of the target at this step"),
        "rank": Field(("point",), "rank of the target at this step, 1 for the most likely token"),
        "entropy": Field(("point",), "entropy of the prediction at this step", unit="nats"),
        "kl": Field(
            ("point",), "KL divergence of the prediction at this step from the prediction at the last step", unit="nats"
        ),
        "top_tokens": Field(("point", "k"), "ids of the most likely tokens at this step", is_categorical=True),
        "top_probabilities": Field(
            ("point", "k"), "probabilities of the most likely tokens at this step, in decreasing order"
        ),
        "predicted_log_probability": Field(
            ("earlier_token",),
            "log probability of the most likely next token at an earlier token, last step",
            unit="nats",
        ),
        "log_probability_next": Field(
            ("earlier_token",),
            "log probability of the actual next token at an earlier token, last step",
            unit="nats",
            null="log_probability_next_null",
            null_sd="log_probability_next_null_sd",
        ),
        "log_probability_next_null": Field(
            ("earlier_token",),
            "mean log probability of the next token after permuting the tokens between the first one and this one",
            unit="nats",
        ),
        "log_probability_next_null_sd": Field(
            ("earlier_token",), "standard deviation of this log probability over the draws", unit="nats"
        ),
        "log_probability_next_null_draws": Field(
            ("draw",),
            "mean log probability of the next token over the earlier tokens, per draw of the null",
            unit="nats",
        ),
        "predicted_token": Field(
            ("end", "token"),
            "id of the most likely next token at each of the last positions, after the embedding and after every layer",
            is_categorical=True,
        ),
        "predicted_probability": Field(("end", "token"), "probability of the most likely next token"),
        "attribution": Field(
            ("component",),
            "contribution of the component to the target's logit minus the mean logit, with the scale of the final norm fixed",
        ),
        "source_weight": Field(
            ("cross_head", "source_token"),
            "weight of a head of cross-attention, from the predicting token to a token of the source",
        ),
        "source_path_share": Field(
            ("cross_head",),
            "displacement of the predicting token by a head of cross-attention along that by its layer's cross-attention, "
            "divided by the token's path length",
        ),
        "cross_path_share": Field((), "share of cross-attention in the path length of the predicting token"),
        "feature_share": Field((), "share of the features of a dictionary in the attribution"),
        "error_share": Field((), "share of the error of the dictionary in the attribution"),
        "rest_share": Field((), "share of constants and of the components that the dictionary does not describe"),
        "logit": Field((), "the model's own logit of the target at the last step, with its bias and its cap"),
        "logit_above_mean": Field(
            (), "logit of the target minus the mean logit of the vocabulary, before a cap; the sum of the attribution"
        ),
    },
)
