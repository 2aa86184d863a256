"""Surgery of every head alone: one sweep over the heads, which computes only what comes after each of them."""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rheoscope.covers.comparison_arms import Against, Made, means_of, running
from rheoscope.covers.head_replacement import plans
from rheoscope.covers.head_selection import Chosen
from rheoscope.covers.text_batches import Batch, Piece, Progress, losses, measured
from rheoscope.space.analysis import Field, with_interval
from rheoscope.space.model import Model
from rheoscope.space.view import View
from rheoscope.statistics.nulls import bootstrap, units

Sums = Float[Tensor, "change heads _"]
"""Costs of the tokens of every unit (a text, or a chunk of one) added up."""
Swept = tuple[float, Sums, list[int]]
"""Of one piece: its loss before, what every change of every head costs it, its massive tokens."""


def each_head(
    model: Model,
    cut: list[Piece],
    chosen: Chosen,
    M: str | None,
    F: str | None,
    against: Against,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], list[list[int]]]:
    """Every field of `surgery` with each chosen head changed alone, and the massive tokens of every piece."""
    made = _made(model.view, chosen, M, F, against)
    sweep = partial(_swept, model, chosen=chosen, made=made, against=against, texts=len(cut))
    rows: list[Swept] = measured(model, cut, sweep, progress)
    values = kernel([sums for _, sums, _ in rows], [len(one) - 1 for one in cut], against.seed)
    placed = {name: _placed(x, chosen, model.view) if name.startswith("each_") else x for name, x in values.items()}
    return {"loss_before": [before for before, *_ in rows]} | placed, [massive for *_, massive in rows]


def _made(view: View, chosen: Chosen, M: str | None, F: str | None, against: Against) -> dict[int, Made]:
    """The changes of every layer; its random turns are its own, whatever else is asked for."""
    return {
        layer: against.made(plans(view, {layer: some}, M, F), Generator().manual_seed(1000 * against.seed + layer))
        for layer, some in chosen.items()
    }


@torch.no_grad()
def _swept(
    model: Model, batch: Batch, chosen: Chosen, made: dict[int, Made], against: Against, texts: int
) -> dict[int, Swept]:
    """Number of a piece → its loss before, and what every change of every head costs it."""
    passed, means = model.passed(batch.ids), means_of(batch, against)
    size = units([batch.before.shape[-1]] * texts)[0]
    heads = []
    for layer, some in chosen.items():
        for head in some:
            after: dict[str, list[Tensor]] = {name: [] for name in against.changes}
            for name, edits in running(batch, {layer: [head]}, made[layer], means, against):
                logits = model.run_batch(batch.ids, edits, given=passed[:layer])
                after[name].append(_added(losses(logits, batch.ids) - batch.before, size))
            heads.append(torch.stack([torch.stack(draws).mean(0) for draws in after.values()]))
    sums, before = torch.stack(heads, 1).cpu(), batch.before.mean(-1).tolist()
    return {
        piece: (before[at], sums[:, :, at].double(), batch.traces[at].massive()) for at, piece in enumerate(batch.which)
    }


def _added(costs: Float[Tensor, "b m"], size: int) -> Float[Tensor, "b u"]:
    """Costs added up, `size` tokens after the other."""
    return torch.nn.functional.pad(costs, (0, -costs.shape[-1] % size)).unflatten(-1, (-1, size)).sum(-1)


def kernel(of_pieces: list[Sums], lengths: list[int], seed: int) -> dict[str, Any]:
    """Costs, excesses and totals with their intervals, from the costs of units of every piece and the pieces' tokens."""
    sums = torch.cat(of_pieces, -1)
    of_text = [one.sum(-1) / length for one, length in zip(of_pieces, lengths, strict=True)]
    values: dict[str, Any] = {"tokens": lengths, "each_cost_of_text": torch.stack(of_text, -1)}
    for name, total, these in (("each_cost", "total", sums), ("each_excess", "total_excess", sums[:1] - sums)):
        values |= _with_ends(name, these, lengths, seed) | _with_ends(total, these.sum(1), lengths, seed)
    return values


def _with_ends(name: str, sums: Float[Tensor, "*c u"], lengths: list[int], seed: int) -> dict[str, Float[Tensor, "*c"]]:
    """The mean over tokens, and both ends of its interval."""
    low, high = bootstrap(sums, units(lengths), Generator().manual_seed(seed))
    return {name: sums.sum(-1) / sum(lengths), f"{name}_low": low, f"{name}_high": high}


def _placed(x: Float[Tensor, "change heads *t"], chosen: Chosen, view: View) -> Float[Tensor, "change layer head *t"]:
    """What belongs to the chosen heads, where they stand; NaN elsewhere."""
    found = x.new_full((len(x), view.layers, view.heads, *x.shape[2:]), torch.nan)
    layers, heads = zip(*((layer, head) for layer, some in chosen.items() for head in some), strict=True)
    found[:, list(layers), list(heads)] = x
    return found


GRID = ("change", "layer", "head")
COST = Field(
    GRID,
    "loss with this head alone changed less the loss before, per token, over all texts (and draws of a control)",
    "nats",
)
EXCESS = Field(
    GRID,
    "cost of the replacement less that of each change in the same head, over the same texts: above 0 it costs more",
    "nats",
)
TOTAL = Field(("change",), "the cost summed over the heads that were changed, one at a time", "nats")
TOTAL_EXCESS = Field(("change",), "the excess summed over the same heads", "nats")
FIELDS = (
    with_interval("each_cost", COST)
    | with_interval("each_excess", EXCESS)
    | {"each_cost_of_text": Field((*GRID, "text"), "the cost of the head alone in each text", "nats")}
    | with_interval("total", TOTAL)
    | with_interval("total_excess", TOTAL_EXCESS)
)
"""What `surgery(each=True)` answers with, beside the loss before and the number of tokens."""
