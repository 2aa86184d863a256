"""Surgery of one head at a time: a sweep over the heads that runs only the layers from each head on."""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rheoscope.covers.comparison_arms import Comparisons, EditDraws, batch_mean_outputs, iterate_edits
from rheoscope.covers.head_replacement import plan_edits
from rheoscope.covers.head_selection import HeadsByLayer
from rheoscope.covers.text_batches import Batch, OnProgress, WindowIds, measure_windows, next_token_losses
from rheoscope.space.analysis import Field, with_interval
from rheoscope.space.model import Model
from rheoscope.space.view import View
from rheoscope.statistics.intervals import bootstrap_t_interval, unit_sizes

CostSums = Float[Tensor, "change heads _"]
"""The costs summed over the tokens of every unit, which is a text or a chunk."""
WindowSweep = tuple[float, CostSums, list[int]]
"""One window: its loss before, the cost of every change of every head, and its massive tokens."""


def sweep_heads(
    model: Model,
    windows: list[WindowIds],
    heads_by_layer: HeadsByLayer,
    M: str | None,
    F: str | None,
    comparisons: Comparisons,
    progress: OnProgress | None = None,
) -> tuple[dict[str, Any], list[list[int]]]:
    """Every field of `surgery` with each selected head changed alone, and the massive tokens of every window."""
    edit_draws = _edit_draws_by_layer(model.view, heads_by_layer, M, F, comparisons)
    sweep = partial(
        _sweep_batch,
        model,
        heads_by_layer=heads_by_layer,
        edit_draws=edit_draws,
        comparisons=comparisons,
        n_windows=len(windows),
    )
    rows: list[WindowSweep] = measure_windows(model, windows, sweep, progress)
    values = kernel([sums for _, sums, _ in rows], [len(ids) - 1 for ids in windows], comparisons.seed)
    grid_values = {
        name: _on_head_grid(x, heads_by_layer, model.view) if name.startswith("head_") else x
        for name, x in values.items()
    }
    return {"loss_before": [loss_before for loss_before, *_ in rows]} | grid_values, [massive for *_, massive in rows]


def _edit_draws_by_layer(
    view: View, heads_by_layer: HeadsByLayer, M: str | None, F: str | None, comparisons: Comparisons
) -> dict[int, EditDraws]:
    """The edits of every layer. Each layer has its own random seed, so they do not depend on the selected heads."""
    return {
        layer: comparisons.build_edits(
            plan_edits(view, {layer: head_indices}, M, F), Generator().manual_seed(1000 * comparisons.seed + layer)
        )
        for layer, head_indices in heads_by_layer.items()
    }


@torch.no_grad()
def _sweep_batch(
    model: Model,
    batch: Batch,
    heads_by_layer: HeadsByLayer,
    edit_draws: dict[int, EditDraws],
    comparisons: Comparisons,
    n_windows: int,
) -> dict[int, WindowSweep]:
    """Window index → its loss before and the cost of every change of every head."""
    block_outputs, means = model.block_outputs(batch.ids), batch_mean_outputs(batch, comparisons)
    unit_size = unit_sizes([batch.losses_before.shape[-1]] * n_windows)[0]
    head_costs = []
    for layer, head_indices in heads_by_layer.items():
        for head in head_indices:
            costs: dict[str, list[Tensor]] = {name: [] for name in comparisons.changes}
            for name, edits in iterate_edits(batch, {layer: [head]}, edit_draws[layer], means, comparisons):
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
    """Costs summed over consecutive units of `unit_size` tokens."""
    return torch.nn.functional.pad(costs, (0, -costs.shape[-1] % unit_size)).unflatten(-1, (-1, unit_size)).sum(-1)


def kernel(window_sums: list[CostSums], lengths: list[int], seed: int) -> dict[str, Any]:
    """Costs, excesses and totals with their intervals, from the unit costs and the length of every window."""
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
    """The mean over tokens and both ends of its interval."""
    low, high = bootstrap_t_interval(sums, torch.tensor(unit_sizes(lengths)), seed)
    return {name: sums.sum(-1) / sum(lengths), f"{name}_low": low, f"{name}_high": high}


def _on_head_grid(
    x: Float[Tensor, "change heads *t"], heads_by_layer: HeadsByLayer, view: View
) -> Float[Tensor, "change layer head *t"]:
    """Values of the selected heads on the grid of all heads, with NaN elsewhere."""
    grid = x.new_full((len(x), view.layers, view.heads, *x.shape[2:]), torch.nan)
    layers, heads = zip(
        *((layer, head) for layer, head_indices in heads_by_layer.items() for head in head_indices), strict=True
    )
    grid[:, list(layers), list(heads)] = x
    return grid


HEAD_DIMS = ("change", "layer", "head")
COST = Field(
    HEAD_DIMS,
    "loss with only this head changed minus the loss before, per token, over all texts (and draws of a control)",
    "nats",
)
EXCESS = Field(
    HEAD_DIMS,
    "cost of the replacement minus that of each change in the same head (above 0: the replacement costs more)",
    "nats",
)
TOTAL = Field(("change",), "head_cost summed over the selected heads", "nats")
TOTAL_EXCESS = Field(("change",), "head_excess summed over the selected heads", "nats")
FIELDS = (
    with_interval("head_cost", COST)
    | with_interval("head_excess", EXCESS)
    | {"head_cost_by_text": Field((*HEAD_DIMS, "text"), "head_cost in each text", "nats")}
    | with_interval("total_cost", TOTAL)
    | with_interval("total_excess", TOTAL_EXCESS)
)
"""The fields of `surgery(per_head=True)` besides `loss_before` and `tokens`."""
