"""Do later layers heal a change? The deviation of the stream after an edit, layer by layer, against noise of the same size."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from rheoscope.covers import head_replacement
from rheoscope.covers.head_replacement import OperatorEdit, model_edits, plan_edits
from rheoscope.covers.head_selection import HeadsByLayer, HeadSelection
from rheoscope.covers.reversed_attention.analysis import attention_output_step
from rheoscope.covers.surgery.analysis import default_form, edit_attributes, select_predicting_heads
from rheoscope.covers.text_batches import Batch, OnProgress, measure_windows, next_token_losses, split_into_windows
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field, with_interval
from rheoscope.space.model import Edits, Hook, Model
from rheoscope.space.settings import Draws, Seed
from rheoscope.space.trace import Trace
from rheoscope.space.view import View
from rheoscope.statistics.nulls import RESAMPLES, bootstrap_interval, bootstrap_means, percentile_interval

if TYPE_CHECKING:
    import xarray

ROUNDING = 1e-5
Cloud = Float[Tensor, "b n d"]
WindowDeviations = tuple[list[str], Float[Tensor, "change field"]]
"""Of one piece: the steps that were looked at, and its sums over tokens under every change."""


def decay(
    model: Model,
    text: Any,
    heads: HeadSelection = None,
    M: str | None = None,
    F: str | None = None,
    draws: Draws = 1,
    seed: Seed = 0,
    progress: OnProgress | None = None,
) -> "xarray.Dataset":
    """What later layers make of a change in one layer: does the deviation die out, faster or slower than noise of its size?

    **Answers** "is the model robust to this change, or to any change of that size?"

    **Formula** deviation_ℓ = mean_i ‖x'_i − x_i‖ / ‖x_i‖ after every step from the changed layer on; remaining = deviation_ℓ over the
    first. Noise is added to the stream where attention of that layer has written, with the length that the edit has there, token by
    token: `isotropic` in random directions of E, `exchanged` in those in which the edit moves another token of the text.

    **Shapes** as in `surgery`; all heads in one layer: [(5, 1), (5, 2)], `model.view.head_indices(5)`, or None for all of the first layer.
    With neither M nor F, M is made symmetric. `draws=0` leaves the noise out.

    **Gives** (change, step): `deviation`, `remaining`, `direction`, `healed_less`; (change): `cost`; bootstrap intervals over texts of
    `remaining`, `healed_less` and `cost` (NaN for fewer than five).

    **Laws** at the first step every change has the same deviation; layers that write nothing leave `remaining` and `direction` at 1;
    equal to the points of `trace_under` less those of the model; the model is as before on exit; no gauge moves any number.

    **Siblings** `surgery` says what the change costs; `geometry_kept` follows the geometry of the cloud, this its displacement.

    >>> import rheoscope as rs
    >>> found = rs.decay(rs.load(), "The keys to the cabinet are on the table", heads=[(2, 1)], M="symmetric")
    >>> found.remaining.dims, bool((found.remaining[:, 0] == 1).all())
    (('change', 'step'), True)
    """
    if draws < 0:
        raise RheoscopeError(f"noise is drawn 0 times or more, got draws={draws}; type draws=1")
    M, heads_by_layer, windows = (
        default_form(M, F),
        _heads_of_one_layer(model.view, heads),
        split_into_windows(model, text),
    )
    (edit,) = (
        head_replacement.replacement_edit(plan, Generator()) for plan in plan_edits(model.view, heads_by_layer, M, F)
    )
    noises = list(NOISE_KINDS) if draws else []
    measure = partial(
        _measure_deviations, model, edit=edit, noises=noises, draws=draws, generator=Generator().manual_seed(seed)
    )
    rows = measure_windows(model, windows, measure, progress)
    values = kernel(torch.stack([row for _, row in rows], -1), [len(ids) - 1 for ids in windows], seed)
    coords = {"change": ["edit", *noises], "step": rows[0][0]}
    settings = {"draws": draws, "seed": seed, "bootstrap": f"{RESAMPLES} draws of texts"}
    return DECAY.label(values, coords, edit_attributes(model.view, heads, heads_by_layer, M, F) | settings)


def _heads_of_one_layer(view: View, heads: HeadSelection) -> HeadsByLayer:
    """The heads asked for, all of one layer; unless said those of the first."""
    heads_by_layer = select_predicting_heads(view, view.head_indices(0) if heads is None else heads)
    if len(heads_by_layer) > 1:
        raise RheoscopeError(
            f"decay follows a change of one layer, got heads of {len(heads_by_layer)} layers; type heads=[(5, 1)], or "
            "heads=model.view.head_indices(5)"
        )
    return heads_by_layer


def steps_after_attention(trace: Trace, layer: int) -> list[str]:
    """The steps from where the attention of a layer has written on."""
    first_index = trace.steps.index(attention_output_step(trace, layer))
    return [str(step) for step in trace.steps[first_index:] if step not in trace.unread_steps]


# Noise


def isotropic_noise(displacement: Cloud, generator: Generator) -> Cloud:
    """Random directions of E."""
    return _scale_to_lengths(torch.randn(displacement.shape, generator=generator).to(displacement), displacement)


def exchanged_noise(displacement: Cloud, generator: Generator) -> Cloud:
    """The directions in which other tokens of the same text move."""
    directions = torch.zeros_like(displacement)
    for text_directions, text_displacement in zip(directions, displacement, strict=True):
        moved_positions = _has_moved(text_displacement).nonzero()[:, 0]
        text_directions[moved_positions] = text_displacement[
            moved_positions[torch.randperm(len(moved_positions), generator=generator).to(moved_positions.device)]
        ]
    return _scale_to_lengths(directions, displacement)


def _has_moved(cloud: Float[Tensor, "*b n d"]) -> Bool[Tensor, "*b n"]:
    """Which tokens moved by more than rounding: the first of a causal text, which sees itself alone, does not."""
    distance = cloud.norm(dim=-1)
    return distance > ROUNDING * distance.amax(-1, keepdim=True)


def _scale_to_lengths(directions: Cloud, displacement: Cloud) -> Cloud:
    return directions * (
        displacement.norm(dim=-1, keepdim=True) / directions.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    )


NOISE_KINDS: dict[str, Callable[[Cloud, Generator], Cloud]] = {
    "isotropic": isotropic_noise,
    "exchanged": exchanged_noise,
}
"""Displacements of the same length, token by token, in directions that say nothing of the edit, or of where it was."""


# Some texts side by side


@torch.no_grad()
def _measure_deviations(
    model: Model, batch: Batch, edit: OperatorEdit, noises: list[str], draws: int, generator: Generator
) -> dict[int, WindowDeviations]:
    """Number of a piece → its steps, and its deviations and cost, summed over tokens, under the edit and under the mean of every noise."""
    steps = steps_after_attention(batch.traces[0], edit.layer)
    clean_points = {step: torch.stack([trace.points_at(step) for trace in batch.traces]) for step in steps}
    block_outputs = model.block_outputs(batch.ids)[: edit.layer]

    def run_with(edits: Edits, hooks: dict[str, Hook]) -> tuple[dict[str, Cloud], Float[Tensor, "b field"]]:
        displacements: dict[str, Cloud] = {}
        recorders = {
            step: _compose_hooks(hooks.get(step), _record_displacement(displacements, step, clean_points[step]))
            for step in steps
        }
        logits = model.run_batch(batch.ids, edits, hooks | recorders, block_outputs)
        cost = (next_token_losses(logits, batch.ids) - batch.losses_before).sum(-1, keepdim=True)
        return displacements, torch.cat([*_deviation_sums(clean_points, displacements, batch.is_included), cost], -1)

    displacements, edit_row = run_with(model_edits(batch.is_included, [edit]), {})
    change_rows = [edit_row]
    for name in noises:
        noise_draws = [NOISE_KINDS[name](displacements[steps[0]], generator) for _ in range(draws)]
        change_rows.append(
            torch.stack([run_with({}, {steps[0]: _add_noise(noise)})[1] for noise in noise_draws]).mean(0)
        )
    rows = torch.stack(change_rows, 1).cpu().double()
    return {window_index: (steps, rows[batch_index]) for batch_index, window_index in enumerate(batch.window_indices)}


def _record_displacement(displacements: dict[str, Cloud], step: str, clean_points: Cloud) -> Hook:
    def record(x: Tensor) -> Tensor:
        displacements[step] = x.reshape(clean_points.shape) - clean_points
        return x

    return record


def _add_noise(noise: Cloud) -> Hook:
    return lambda x: x + noise.to(x).reshape(x.shape)


def _compose_hooks(first_hook: Hook | None, second_hook: Hook) -> Hook:
    return second_hook if first_hook is None else lambda x: second_hook(first_hook(x))


def _deviation_sums(
    clean_points: dict[str, Cloud], displacements: dict[str, Cloud], is_included: Bool[Tensor, "b n"]
) -> list[Tensor]:
    """Of every text, summed over tokens: deviations (b, step), directions (b, step); and how many tokens, of each of the two (b, 1)."""
    first_displacement = next(iter(displacements.values()))
    has_direction = is_included & _has_moved(first_displacement)
    deviations = [
        (d.norm(dim=-1) / clean_points[step].norm(dim=-1) * is_included).sum(-1) for step, d in displacements.items()
    ]
    directions = [
        (torch.cosine_similarity(d, first_displacement, dim=-1) * has_direction).sum(-1) for d in displacements.values()
    ]
    counts = [mask.sum(-1, keepdim=True).to(first_displacement) for mask in (is_included, has_direction)]
    return [torch.stack(deviations, -1), torch.stack(directions, -1), *counts]


def kernel(rows: Float[Tensor, "change field text"], lengths: list[int], seed: int) -> dict[str, Tensor]:
    """Means over texts with their intervals, from what `_followed` gives of every text and the texts' predicted tokens."""
    n_steps = (rows.shape[1] - 3) // 2
    deviation, direction, n_tokens, n_moved, cost = rows.split([n_steps, n_steps, 1, 1, 1], 1)
    token_counts = n_tokens[0, 0].long().tolist()
    resampled_means, mean_deviation = (
        bootstrap_means(deviation, token_counts, Generator().manual_seed(seed)),
        deviation.sum(-1) / sum(token_counts),
    )
    remaining, resampled_remaining = mean_deviation / mean_deviation[:, :1], resampled_means / resampled_means[:, :1]
    values = {
        "deviation": mean_deviation,
        "direction": direction.sum(-1) / n_moved.sum(-1),
        "remaining": remaining,
        "healed_less": remaining[:1] - remaining,
        "cost": cost[:, 0].sum(-1) / sum(lengths),
    }
    intervals = {
        "remaining": percentile_interval(resampled_remaining),
        "healed_less": percentile_interval(resampled_remaining[:1] - resampled_remaining),
        "cost": bootstrap_interval(cost[:, 0], lengths, Generator().manual_seed(seed)),
    }
    for name, (low, high) in intervals.items():
        values |= {f"{name}_low": low, f"{name}_high": high}
    return values


STEP_DIMS = ("change", "step")
REMAINING = Field(STEP_DIMS, "deviation over that at the first step, where attention of the changed layer has written")
HEALED_LESS = Field(
    STEP_DIMS,
    "remaining of the edit less that of each change, over the same texts: above 0 later layers undo the noise more",
)
COST = Field(("change",), "loss under the change less that of the model as it is, per token", "nats")
DECAY = Analysis(
    name="decay",
    question="Do later layers undo a change of one layer, more or less than noise of its size?",
    ask=decay,
    needs="model",
    fields={
        "deviation": Field(
            STEP_DIMS,
            "‖x'_i − x_i‖ / ‖x_i‖ at a step, mean over tokens that are not massive: x' under the change, x of the model as it is",
        ),
        "direction": Field(
            STEP_DIMS,
            "cosine of x'_i − x_i with the same at the first step, mean over tokens that are not massive and that moved there",
        ),
    }
    | with_interval("remaining", REMAINING)
    | with_interval("healed_less", HEALED_LESS)
    | with_interval("cost", COST),
)
