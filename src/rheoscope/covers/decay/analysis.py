"""How later layers change the deviation that an edit causes, compared with noise of the same size."""

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
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field, with_interval
from rheoscope.space.model import Edits, Hook, Model
from rheoscope.space.settings import Draws, Seed
from rheoscope.space.trace import Trace
from rheoscope.space.view import View
from rheoscope.statistics.intervals import bootstrap_t_interval, describe_intervals

if TYPE_CHECKING:
    import xarray

ROUNDING = 1e-5
Cloud = Float[Tensor, "b n d"]
WindowDeviations = tuple[list[str], Float[Tensor, "change field"]]
"""The steps of one window, and its sums over tokens under every change."""


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
    """How the deviation caused by an edit of one layer grows or shrinks in later layers.

    **Question** Is the model robust to this edit, or to any change of the same size?

    **Formula** deviation_ℓ = mean_i ‖x'_i − x_i‖ / ‖x_i‖ at every step from the edited layer on. The deviation
    ratio divides it by the deviation at the first step. Noise is added where the attention of that layer writes. For every
    token it is as long as the displacement by the edit. `isotropic` noise has random directions in E. `exchanged` noise
    has the directions in which the edit moves other tokens of the text.

    **Settings** `heads` are heads of one layer: `[(5, 1), (5, 2)]` or `model.view.head_indices(5)`. None means all heads
    of the first layer. `M` and `F` name replacements, as in `surgery`. With neither, M is made symmetric. `draws=0` omits
    the noise.

    **Returns** (change, step): `deviation`, `deviation_ratio`, `excess_deviation_ratio` and `direction`. (change):
    `cost`. The ratios and the cost have 95 % intervals over texts, which are NaN for fewer than four texts.

    **Laws** All changes have the same deviation at the first step. Layers that write nothing keep `deviation_ratio` and
    `direction` at 1. The deviations equal those between `trace_under` and the unedited trace. The model is restored on
    exit. No reparametrisation that preserves the logits changes a value.

    **See also** `surgery` measures the cost of the edit. `geometry_kept` compares the geometry of clouds.

    >>> import rheoscope as rs
    >>> result = rs.decay(rs.load(), "The keys to the cabinet are on the table", heads=[(2, 1)], M="symmetric")
    >>> result.deviation_ratio.dims, bool((result.deviation_ratio[:, 0] == 1).all())
    (('change', 'step'), True)
    """
    if draws < 0:
        raise RheoscopeError(Message("draws must be at least 0, got {value}", value=draws), use(draws=1))
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
    settings = {"draws": draws, "seed": seed, "intervals": describe_intervals(Message("texts"), len(windows))}
    return DECAY.label(values, coords, edit_attributes(model.view, heads, heads_by_layer, M, F) | settings)


def _heads_of_one_layer(view: View, heads: HeadSelection) -> HeadsByLayer:
    """The requested heads, which must be in one layer; by default all heads of the first layer."""
    heads_by_layer = select_predicting_heads(view, view.head_indices(0) if heads is None else heads)
    if len(heads_by_layer) > 1:
        layer, head_indices = next(iter(heads_by_layer.items()))
        raise RheoscopeError(
            Message("decay edits heads of one layer, got heads of {n} layers", n=len(heads_by_layer)),
            use(heads=[(layer, head) for head in head_indices]),
        )
    return heads_by_layer


def steps_after_attention(trace: Trace, layer: int) -> list[str]:
    """The steps from the output of a layer's attention to the end."""
    first_index = trace.steps.index(attention_output_step(trace, layer))
    return [str(step) for step in trace.steps[first_index:] if step not in trace.unread_steps]


# Noise


def isotropic_noise(displacement: Cloud, generator: Generator) -> Cloud:
    """Random directions in E, with the lengths of the displacements."""
    return _scale_to_lengths(torch.randn(displacement.shape, generator=generator).to(displacement), displacement)


def exchanged_noise(displacement: Cloud, generator: Generator) -> Cloud:
    """The directions in which other tokens of the same text move, with the lengths of the displacements."""
    directions = torch.zeros_like(displacement)
    for text_directions, text_displacement in zip(directions, displacement, strict=True):
        moved_positions = _has_moved(text_displacement).nonzero()[:, 0]
        text_directions[moved_positions] = text_displacement[
            moved_positions[torch.randperm(len(moved_positions), generator=generator).to(moved_positions.device)]
        ]
    return _scale_to_lengths(directions, displacement)


def _has_moved(cloud: Float[Tensor, "*b n d"]) -> Bool[Tensor, "*b n"]:
    """Which tokens moved by more than rounding. The first token of a causal text attends to itself only and does not move."""
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
"""Kind of noise → function that replaces the directions of displacements and keeps their lengths."""


@torch.no_grad()
def _measure_deviations(
    model: Model, batch: Batch, edit: OperatorEdit, noises: list[str], draws: int, generator: Generator
) -> dict[int, WindowDeviations]:
    """Window index → its steps, and its deviations and cost summed over tokens, for the edit and the mean of each noise."""
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
    """Deviations (b, step) and direction cosines (b, step) summed over tokens, and the number of tokens of each (b, 1)."""
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
    """Means over texts with their intervals, from the sums of `_measure_deviations` and the number of predicted tokens."""
    n_steps = (rows.shape[1] - 3) // 2
    deviation, direction, n_tokens, n_moved, cost = rows.split([n_steps, n_steps, 1, 1, 1], 1)
    mean_deviation = deviation.sum(-1) / n_tokens[0, 0].sum()
    deviation_ratio, first_deviation = mean_deviation / mean_deviation[:, :1], deviation[:, :1]
    values = {
        "deviation": mean_deviation,
        "direction": direction.sum(-1) / n_moved.sum(-1),
        "deviation_ratio": deviation_ratio,
        "excess_deviation_ratio": deviation_ratio[:1] - deviation_ratio,
        "cost": cost[:, 0].sum(-1) / sum(lengths),
    }
    intervals = {
        "deviation_ratio": bootstrap_t_interval(deviation, first_deviation, seed),
        # every change has the same deviation at the first step
        "excess_deviation_ratio": bootstrap_t_interval(deviation[:1] - deviation, first_deviation[:1], seed),
        "cost": bootstrap_t_interval(cost[:, 0], torch.tensor(lengths), seed),
    }
    for name, (low, high) in intervals.items():
        values |= {f"{name}_low": low, f"{name}_high": high}
    return values


STEP_DIMS = ("change", "step")
DEVIATION_RATIO = Field(STEP_DIMS, "deviation divided by the deviation at the first step")
EXCESS_DEVIATION_RATIO = Field(
    STEP_DIMS,
    "deviation_ratio of the edit minus that of each change; above 0, later layers reduce the noise more than the edit",
)
COST = Field(("change",), "loss under the change minus the original loss, per token", "nats")
DECAY = Analysis(
    name="decay",
    question="Do later layers undo an edit of one layer more or less than noise of the same size?",
    ask=decay,
    needs="model",
    fields={
        "deviation": Field(
            STEP_DIMS,
            "‖x'_i − x_i‖ / ‖x_i‖ with and without the change, mean over tokens that are not massive",
        ),
        "direction": Field(
            STEP_DIMS,
            "cosine of x'_i − x_i with its value at the first step, mean over tokens that moved there and are not massive",
        ),
    }
    | with_interval("deviation_ratio", DEVIATION_RATIO)
    | with_interval("excess_deviation_ratio", EXCESS_DEVIATION_RATIO)
    | with_interval("cost", COST),
)
