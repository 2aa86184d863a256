"""What does it cost to change M or F? The loss of a running model whose heads have another form or another content."""

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from rheoscope.attention.definition import query_key_positions
from rheoscope.covers import head_replacement
from rheoscope.covers.comparison_arms import (
    ALL_COMPARISONS,
    SIZE_MATCHED,
    Against,
    EditDraws,
    batch_mean_outputs,
    iterate_edits,
)
from rheoscope.covers.head_replacement import model_edits, plan_edits
from rheoscope.covers.head_selection import HeadsByLayer, HeadSelection, format_heads, select_heads
from rheoscope.covers.replacements import CONTENT, RELEVANCE, find_replacement
from rheoscope.covers.surgery import per_head
from rheoscope.covers.text_batches import (
    Batch,
    OnProgress,
    WindowIds,
    included_tokens,
    mean_kl,
    measure_windows,
    next_token_losses,
    split_into_windows,
)
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field, with_interval
from rheoscope.space.model import Model
from rheoscope.space.report_run import ReportRun
from rheoscope.space.trace import Trace
from rheoscope.space.view import View
from rheoscope.statistics.nulls import RESAMPLES, bootstrap_interval, bootstrap_unit_sizes, unit_name

if TYPE_CHECKING:
    import xarray

WindowRow = dict[str, Any]
"""Of one piece: its losses (m) under every change, the divergence of the edit, its massive tokens."""


def surgery(
    model: Model,
    text: Any,
    heads: HeadSelection = None,
    M: str | None = None,
    F: str | None = None,
    against: Against | None = None,
    each: bool = False,
    progress: OnProgress | None = None,
) -> "xarray.Dataset":
    """What a change of M or F costs: the loss before, after, and under changes that mean nothing.

    **Answers** "does the model need the asymmetry of this head (its offset, its rank, …), or only something of that size?"; with
    `each=True` "which heads need theirs?", every head changed alone.

    **Formula** s_ij = (x̂_i − x̄) M(δ) (x̂_j − x̄)ᵀ + the rest; only the first part changes, M → M', so what the mean of the cloud and the
    biases ask for stays (`…_naive` changes x̂_i M x̂_jᵀ whole). Δ(x_i) = Σ_j α_ij ((x̂_j − x̄) F + the rest) the same for F → F'.
    M: symmetric, symmetric_scores, skew, at_zero, positive, 'rank 8'; F: symmetric, 'rank 8'; `identity` and `…_naive` for both.
    With neither M nor F, M is made symmetric.

    **Shapes** `text`: one or a list, cut into pieces of 512 tokens; pieces of one length run side by side. `heads`: [(layer, head), …],
    None for all, `model.view.head_indices(5)` for a layer. `against`: `rs.Against(("size", "mean"), draws=3, seed=1)`; unless said all
    comparisons, with `each` the random ones of the size of the edit ("size", "cloud").

    **Gives** (text): `loss_before`, `tokens`, `loss_after`, `kl`; (control, text): `loss_control`; (ablation, text): `loss_ablated`;
    (change): `cost`, and `excess` of the edit above each change, with bootstrap intervals (`cost_low`, `cost_high`, …) over texts, or over
    chunks where there are fewer than five. With `each`, beside the first two, (change, layer, head): `each_cost`, `each_excess`,
    NaN where a head was not asked for; (change, layer, head, text): `each_cost_of_text`; (change): `total`, `total_excess` over heads.

    **Laws** `identity` changes no bit; equal to scores computed from dense M(δ) in every family; controls have the size and the
    spectrum of the edit at every offset; texts side by side give what each gives alone; the model is as before on exit; no gauge
    moves any number. A head's cost with `each` is that of the head asked for alone, whichever others are (random turns belong to a
    layer and the seed).

    **Limits** x̄ is the mean over all tokens of the text that are not massive, of the running, edited model: so a token's edited
    scores know a little of what comes after it. Under QK-norm the realised scales of queries and keys stay.

    **Cost** with `each`, a head of layer ℓ runs layers ℓ and after: the stream before it is unchanged and reused. All 270 heads of a
    model of 135M parameters cost about as much as 135 forward passes a change.

    **Siblings** `decay` asks what later layers make of the change; `trace_under` gives the points under it; `operators` says how
    symmetric M is, this what that is worth.

    >>> import rheoscope as rs
    >>> found = rs.surgery(rs.load(), "The keys to the cabinet are on the table", heads=[(2, 1)], M="symmetric")
    >>> found.loss_control.dims, bool(abs(found.cost.sel(change="edit") - (found.loss_after - found.loss_before)) < 1e-6)
    (('control', 'text'), True)
    >>> found = rs.surgery(rs.load(), "The keys to the cabinet are on the table", heads=[(2, 1), (3, 0)], each=True)
    >>> found.each_cost.dims, int(found.each_cost.sel(change="edit").notnull().sum())
    (('change', 'layer', 'head'), 2)
    """
    view, M = model.view, default_form(M, F)
    against = against or (SIZE_MATCHED if each else ALL_COMPARISONS)
    heads_by_layer, windows = select_predicting_heads(view, heads), split_into_windows(model, text)
    measure = per_head.sweep_heads if each else measure_all_heads
    values, massive = measure(model, windows, heads_by_layer, M, F, against, progress)
    coords: dict[str, Any] = {"text": range(len(windows)), "change": against.changes}
    head_coords = {"layer": range(view.layers), "head": range(view.heads)}
    comparison_coords = {"control": against.controls, "ablation": against.ablations}
    coords |= head_coords if each else {dim: names for dim, names in comparison_coords.items() if names}
    settings = {"draws": against.draws, "seed": against.seed, "each": int(each), "massive": massive}
    settings["bootstrap"] = f"{RESAMPLES} draws of {unit_name(values['tokens'])}"
    return SURGERY.label(values, coords, edit_attributes(view, heads, heads_by_layer, M, F) | settings)


def default_form(M: str | None, F: str | None) -> str | None:
    """What stands in the place of M: with neither M nor F given, its symmetric part."""
    return "symmetric" if M is None and F is None else M


def edit_attributes(
    view: View, heads: HeadSelection, heads_by_layer: HeadsByLayer, M: str | None, F: str | None
) -> dict[str, Any]:
    """What was changed, as results carry it."""
    replacements = [
        *([] if M is None else [find_replacement(M, RELEVANCE, "M")]),
        *([] if F is None else [find_replacement(F, CONTENT, "F")]),
    ]
    return {
        "heads": "all" if heads is None and len(heads_by_layer) == view.layers else format_heads(heads_by_layer),
        "M": M or "identity",
        "F": F or "identity",
        "replaces": " and ".join(replacement.description for replacement in replacements),
        "centre": "mean of x̂ over the tokens of each text that are not massive, layer by layer, as the edited model runs",
    } | {name: str(value) for name, value in view.facts.items()}


def trace_under(
    model: Model, text: Any, heads: HeadSelection = None, M: str | None = None, F: str | None = None
) -> Trace:
    """The points (and logits) of one text under a change of M or F, for every analysis of the flow (see `surgery`).

    What the Trace recomputes, its weights and displacements, is by the View, which is not changed.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> after = rs.trace_under(model, "The keys to the cabinet are", heads=model.view.head_indices(3), M="symmetric")
    >>> bool((after.points_at("L2.resid_post") == model.trace("The keys to the cabinet are").points_at("L2.resid_post")).all())
    True
    """
    operator_edits = [
        head_replacement.replacement_edit(plan, Generator())
        for plan in plan_edits(model.view, select_heads(model.view, heads), M, F)
    ]
    edits = model_edits(included_tokens(model.trace(text)), operator_edits)
    return model.trace(text, logits=model.view.unembed is not None, edit=edits)


# All chosen heads together


def measure_all_heads(
    model: Model,
    windows: list[WindowIds],
    heads_by_layer: HeadsByLayer,
    M: str | None,
    F: str | None,
    against: Against,
    progress: OnProgress | None = None,
) -> tuple[dict[str, Any], list[list[int]]]:
    """Every field with all chosen heads changed at once, and the massive tokens of every piece."""
    edit_draws = against.build_edits(
        plan_edits(model.view, heads_by_layer, M, F), Generator().manual_seed(against.seed)
    )
    rows: list[WindowRow] = measure_windows(
        model,
        windows,
        partial(_measure_batch, model, heads_by_layer=heads_by_layer, edit_draws=edit_draws, against=against),
        progress,
    )
    return kernel(rows, against), [row["massive"] for row in rows]


@torch.no_grad()
def _measure_batch(
    model: Model, batch: Batch, heads_by_layer: HeadsByLayer, edit_draws: EditDraws, against: Against
) -> dict[int, WindowRow]:
    """Number of a piece → what was measured of it; nothing before the first edit runs twice."""
    first_layer = min(heads_by_layer)
    block_outputs = model.block_outputs(batch.ids)[:first_layer] if first_layer else []
    losses_by_change: dict[str, list[Tensor]] = {}
    for name, edits in iterate_edits(batch, heads_by_layer, edit_draws, batch_mean_outputs(batch, against), against):
        logits = model.run_batch(batch.ids, edits, block_outputs=block_outputs)
        losses_by_change.setdefault(name, []).append(next_token_losses(logits, batch.ids))
        if name == "edit":
            kl = mean_kl(batch.logits, logits).tolist()
    mean_losses = {name: torch.stack(draws).mean(0).cpu() for name, draws in losses_by_change.items()} | {
        "before": batch.losses_before.cpu()
    }
    return {
        window_index: {name: x[batch_index] for name, x in mean_losses.items()}
        | {"kl": kl[batch_index], "massive": batch.traces[batch_index].massive_tokens()}
        for batch_index, window_index in enumerate(batch.window_indices)
    }


def kernel(rows: list[WindowRow], against: Against) -> dict[str, Any]:
    """Mean losses of every piece, costs and excesses over all of them with their intervals."""
    changes, lengths = against.changes, [len(row["before"]) for row in rows]
    costs = torch.stack([torch.cat([row[name] - row["before"] for row in rows]).double() for name in changes])
    costs_and_excesses = torch.stack([costs, costs[:1] - costs])
    sums = torch.stack([unit.sum(-1) for unit in costs_and_excesses.split(bootstrap_unit_sizes(lengths), -1)], -1)
    low, high = bootstrap_interval(sums, bootstrap_unit_sizes(lengths), Generator().manual_seed(against.seed))

    def mean_losses(name: str) -> list[float]:
        return [float(row[name].double().mean()) for row in rows]

    values = {"loss_before": mean_losses("before"), "loss_after": mean_losses("edit"), "tokens": lengths}
    values |= {"kl": [row["kl"] for row in rows]}
    for index, name in enumerate(("cost", "excess")):
        values |= {name: costs_and_excesses[index].mean(-1), f"{name}_low": low[index], f"{name}_high": high[index]}
    for field, names in (("loss_control", against.controls), ("loss_ablated", against.ablations)):
        values |= {field: [mean_losses(name) for name in names]} if names else {}
    return values


# What comes from a user


def select_predicting_heads(view: View, heads: HeadSelection) -> HeadsByLayer:
    """The heads asked for, of a model that predicts next tokens."""
    if view.cross_heads:
        raise RheoscopeError("surgery reads one text, this model reads pairs; type model.run(pair, edit={layer: f})")
    i, j = query_key_positions(2, 2, view.embed.device)
    if not all(bool(~block.mechanism.mask(i, j)[0, 1]) for block in view.layer_heads):
        raise RheoscopeError(
            "this model reads both ways, so it predicts no next token; type rs.trace_under(…) for its points under the change"
        )
    if view.unembed is None:
        raise RheoscopeError("this model has no unembedding, so it has no loss; type rs.trace_under(…) for its points")
    return select_heads(view, heads)


COST = Field(("change",), "loss after a change less the loss before it, per token, over all texts", "nats")
EXCESS = Field(
    ("change",), "cost of the replacement less that of each change, over the same texts: above 0 it costs more", "nats"
)
SURGERY = Analysis(
    name="surgery",
    question="What does it cost the model when its heads look, or carry, in another way?",
    ask=surgery,
    needs="model",
    report_runs=(ReportRun("surgery", 0, options=("heads", "M", "F", "each", "against")),),
    fields={
        "loss_before": Field(("text",), "mean −log p of the next token of each text, of the model as it is", "nats"),
        "tokens": Field(("text",), "how many next tokens of the text were predicted"),
        "loss_after": Field(("text",), "mean −log p of the next token with the heads' operators replaced", "nats"),
        "kl": Field(("text",), "mean over tokens of KL(model as it is ‖ model with the replacement)", "nats"),
        "loss_control": Field(
            ("control", "text"),
            "mean −log p under a control, mean over draws: the change turned at random (size: the same singular values at every "
            "offset), scaled to the size that the edit has on the text (cloud), or the replacement turned at random (spectrum)",
            "nats",
            basis_dependent=True,
        ),
        "loss_ablated": Field(
            ("ablation", "text"),
            "mean −log p with the heads silenced: each output its mean over the text, or attention uniform",
            "nats",
        ),
    }
    | with_interval("cost", COST)
    | with_interval("excess", EXCESS)
    | per_head.FIELDS,
)
