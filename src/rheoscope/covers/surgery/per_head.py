"""Surgery of every head alone: one sweep over the heads, which computes only what comes after each of them."""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rheoscope.covers.comparison_arms import Against, EditDraws, batch_mean_outputs, iterate_edits
from rheoscope.covers.head_replacement import plan_edits
from rheoscope.covers.head_selection import HeadsByLayer
from rheoscope.covers.text_batches import Batch, OnProgress, WindowIds, measure_windows, next_token_losses
from rheoscope.space.analysis import Field, with_interval
from rheoscope.space.model import Model
from rheoscope.space.view import View
from rheoscope.statistics.nulls import bootstrap_interval, bootstrap_unit_sizes

CostSums = Float[Tensor, "change heads _"]
"""Costs of the tokens of every unit (a text, or a chunk of one) added up."""
WindowSweep = tuple[float, CostSums, list[int]]
"""Of one piece: its loss before, what every change of every head costs it, its massive tokens."""


def sweep_heads(
    model: Model,
    windows: list[WindowIds],
    heads_by_layer: HeadsByLayer,
    M: str | None,
    F: str | None,
    against: Against,
    progress: OnProgress | None = None,
) -> tuple[dict[str, Any], list[list[int]]]:
    """Every field of `surgery` with each chosen head changed alone, and the massive tokens of every piece."""
    edit_draws = _edit_draws_by_layer(model.view, heads_by_layer, M, F, against)
    sweep = partial(
        _sweep_batch,
        model,
        heads_by_layer=heads_by_layer,
        edit_draws=edit_draws,
        against=against,
        n_windows=len(windows),
    )
    rows: list[WindowSweep] = measure_windows(model, windows, sweep, progress)
    values = kernel([sums for _, sums, _ in rows], [len(ids) - 1 for ids in windows], against.seed)
    grid_values = {
        name: _on_head_grid(x, heads_by_layer, model.view) if name.startswith("head_") else x
        for name, x in values.items()
    }
    return {"loss_before": [loss_before for loss_before, *_ in rows]} | grid_values, [massive for *_, massive in rows]


def _edit_draws_by_layer(
    view: View, heads_by_layer: HeadsByLayer, M: str | None, F: str | None, against: Against
) -> dict[int, EditDraws]:
    """The changes of every layer; its random turns are its own, whatever else is asked for."""
    return {
        layer: against.build_edits(
            plan_edits(view, {layer: head_indices}, M, F), Generator().manual_seed(1000 * against.seed + layer)
        )
        for layer, head_indices in heads_by_layer.items()
    }


@torch.no_grad()
def _sweep_batch(
    model: Model,
    batch: Batch,
    heads_by_layer: HeadsByLayer,
    edit_draws: dict[int, EditDraws],
    against: Against,
    n_windows: int,
) -> dict[int, WindowSweep]:
    """Number of a piece → its loss before, and what every change of every head costs it."""
    block_outputs, means = model.block_outputs(batch.ids), batch_mean_outputs(batch, against)
    unit_size = bootstrap_unit_sizes([batch.losses_before.shape[-1]] * n_windows)[0]
    head_costs = []
    for layer, head_indices in heads_by_layer.items():
        for head in head_indices:
            costs: dict[str, list[Tensor]] = {name: [] for name in against.changes}
            for name, edits in iterate_edits(batch, {layer: [head]}, edit_draws[layer], means, against):
                logits = model.run_batch(batch.ids, edits, block_outputs=block_outputs[:layer])
                costs[name].append(_sum_by_unit(next_token_losses(logits, batch.ids) - batch.losses_before, unit_size))
            head_costs.append(torch.stack([torch.stack(draws).mean(0) for draws in costs.values()]))
    sums, losses_before = torch.stack(head_costs, 1).cpu(), batch.losses_before.mean(-1).tolist()
    return {
        window_index: (
            losses_before[batch_index],
            sums[:, :, batch_index].double(),
            batch.traces[batch_index].massive_tokens(),
        )
        for batch_index, window_index in enumerate(batch.window_indices)
    }


def _sum_by_unit(costs: Float[Tensor, "b m"], unit_size: int) -> Float[Tensor, "b u"]:
    """Costs added up, `size` tokens after the other."""
    return torch.nn.functional.pad(costs, (0, -costs.shape[-1] % unit_size)).unflatten(-1, (-1, unit_size)).sum(-1)


def kernel(window_sums: list[CostSums], lengths: list[int], seed: int) -> dict[str, Any]:
    """Costs, excesses and totals with their intervals, from the costs of units of every piece and the pieces' tokens."""
    sums = torch.cat(window_sums, -1)
    window_costs = [unit_sums.sum(-1) / length for unit_sums, length in zip(window_sums, lengths, strict=True)]
    values: dict[str, Any] = {"tokens": lengths, "head_cost_by_text": torch.stack(window_costs, -1)}
    for name, total_name, change_sums in (
        ("head_cost", "total_cost", sums),
        ("head_excess", "total_excess", sums[:1] - sums),
    ):
        values |= _mean_with_interval(name, change_sums, lengths, seed) | _mean_with_interval(
            total_name, change_sums.sum(1), lengths, seed
        )
    return values


def _mean_with_interval(
    name: str, sums: Float[Tensor, "*c u"], lengths: list[int], seed: int
) -> dict[str, Float[Tensor, "*c"]]:
    """The mean over tokens, and both ends of its interval."""
    low, high = bootstrap_interval(sums, bootstrap_unit_sizes(lengths), Generator().manual_seed(seed))
    return {name: sums.sum(-1) / sum(lengths), f"{name}_low": low, f"{name}_high": high}


def _on_head_grid(
    x: Float[Tensor, "change heads *t"], heads_by_layer: HeadsByLayer, view: View
) -> Float[Tensor, "change layer head *t"]:
    """What belongs to the chosen heads, where they stand; NaN elsewhere."""
    grid = x.new_full((len(x), view.layers, view.heads, *x.shape[2:]), torch.nan)
    layers, heads = zip(
        *((layer, head) for layer, head_indices in heads_by_layer.items() for head in head_indices), strict=True
    )
    grid[:, list(layers), list(heads)] = x
    return grid


HEAD_DIMS = ("change", "layer", "head")
COST = Field(
    HEAD_DIMS,
    "loss with this head alone changed less the loss before, per token, over all texts (and draws of a control)",
    "nats",
)
EXCESS = Field(
    HEAD_DIMS,
    "cost of the replacement less that of each change in the same head, over the same texts: above 0 it costs more",
    "nats",
)
TOTAL = Field(("change",), "the cost summed over the heads that were changed, one at a time", "nats")
TOTAL_EXCESS = Field(("change",), "the excess summed over the same heads", "nats")
FIELDS = (
    with_interval("head_cost", COST)
    | with_interval("head_excess", EXCESS)
    | {"head_cost_by_text": Field((*HEAD_DIMS, "text"), "the cost of the head alone in each text", "nats")}
    | with_interval("total_cost", TOTAL)
    | with_interval("total_excess", TOTAL_EXCESS)
)
"""What `surgery(per_head=True)` answers with, beside the loss before and the number of tokens."""
