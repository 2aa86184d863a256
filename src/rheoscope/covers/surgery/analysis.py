"""Surgery: the loss of a model after M or F of some heads is replaced, compared with random changes and ablations."""

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from rheoscope.attention.definition import query_key_positions
from rheoscope.covers import head_replacement
from rheoscope.covers.comparison_arms import (
    ALL_COMPARISONS,
    SIZE_MATCHED,
    Comparisons,
    EditDraws,
    batch_mean_outputs,
    iterate_edits,
)
from rheoscope.covers.head_replacement import model_edits, plan_edits
from rheoscope.covers.head_selection import HeadsByLayer, HeadSelection, format_heads, select_heads
from rheoscope.covers.replacements import CONTENT, RELEVANCE, find_replacement
from rheoscope.covers.surgery.per_head import FIELDS, sweep_heads
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
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message, join
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field, with_interval
from rheoscope.space.model import Model
from rheoscope.space.report_run import ReportRun
from rheoscope.space.trace import Trace
from rheoscope.space.view import View
from rheoscope.statistics.intervals import bootstrap_t_interval, describe_intervals, unit_name, unit_sizes

if TYPE_CHECKING:
    import xarray

WindowRow = dict[str, Any]
"""One window: its losses (m) under every change, the KL divergence of the edit and its massive tokens."""


def surgery(
    model: Model,
    text: Any,
    heads: HeadSelection = None,
    M: str | None = None,
    F: str | None = None,
    comparisons: Comparisons | None = None,
    per_head: bool = False,
    progress: OnProgress | None = None,
) -> "xarray.Dataset":
    """The cost of replacing M or F of some heads: the loss before, after, under random changes and under ablation.

    **Question** Does the model need this property of its heads (asymmetry, offset, rank, …), or does any change of that size cost as
    much? With `per_head=True`: which heads need it, each changed alone?

    **Formula** s_ij = (x̂_i − x̄) M(δ) (x̂_j − x̄)ᵀ + rest. Only the first term changes, M → M', so the terms of the mean and the biases
    stay. The suffix `_naive` replaces x̂_i M x̂_jᵀ instead. F → F' works in the same way in Δ(x_i) = Σ_j α_ij ((x̂_j − x̄) F + rest).

    **Settings**
    `text` is one text or a list, cut into windows of 512 tokens.
    `heads` is [(layer, head), …], `model.view.head_indices(5)` for a layer, or None for all.
    `M` is symmetric, symmetric_scores, skew, at_zero, positive, 'rank 8' or identity. `F` is symmetric, 'rank 8' or identity. Most have
    a variant `…_naive`. Without M and F, M becomes symmetric.
    `comparisons` is `rs.Comparisons(("size", "mean"), draws=3, seed=1)`, for example. The default is all of them, and with `per_head` the
    random changes of the same size ("size", "cloud").
    `per_head` changes every head alone.

    **Returns** (text): `loss_before`, `tokens`, `loss_after`, `kl`. (control, text): `loss_control`. (ablation, text): `loss_ablated`.
    (change): `cost`, and `excess` of the edit over each change. Both have 95 % intervals (`cost_low`, `cost_high`, …) over texts, or
    over chunks if there are fewer than four texts. With `per_head`: `loss_before`, `tokens`, (change, layer, head): `head_cost` and
    `head_excess` (NaN for unselected heads), (change, layer, head, text): `head_cost_by_text`, (change): `total_cost`, `total_excess`.

    **Laws** `identity` changes no bit. The edited scores equal those of dense M(δ) in every family. Controls have the size and the
    spectrum of the edit at every offset. Batches give the values of single texts. The model is unchanged afterwards. No gauge changes
    any field. The cost of a head with `per_head` does not depend on which other heads are selected.

    **Limits** x̄ is the mean over all tokens of the text that are not massive, in the edited model. So an edited score depends slightly
    on later tokens. Under QK-norm, the scales of queries and keys stay as they are.

    **Cost** With `per_head`, a head of layer ℓ runs only the layers from ℓ on. All 270 heads of a model with 135M parameters cost about
    135 forward passes per change.

    **See also** `decay`, the effect on later layers; `trace_under`, the points after the change; `operators`, the symmetry of M.

    >>> import rheoscope as rs
    >>> text = "The keys to the cabinet are on the table"
    >>> result = rs.surgery(rs.load(), text, heads=[(2, 1)], M="symmetric")
    >>> result.loss_control.dims, bool(abs(result.cost.sel(change="edit") - (result.loss_after - result.loss_before)) < 1e-6)
    (('control', 'text'), True)
    >>> result = rs.surgery(rs.load(), text, heads=[(2, 1), (3, 0)], per_head=True)
    >>> result.head_cost.dims, int(result.head_cost.sel(change="edit").notnull().sum())
    (('change', 'layer', 'head'), 2)
    """
    view, M = model.view, default_form(M, F)
    comparisons = comparisons or (SIZE_MATCHED if per_head else ALL_COMPARISONS)
    heads_by_layer, windows = select_predicting_heads(view, heads), split_into_windows(model, text)
    measure = sweep_heads if per_head else measure_all_heads
    values, massive = measure(model, windows, heads_by_layer, M, F, comparisons, progress)
    coords: dict[str, Any] = {"text": range(len(windows)), "change": comparisons.changes}
    head_coords = {"layer": range(view.layers), "head": range(view.heads)}
    comparison_coords = {"control": comparisons.controls, "ablation": comparisons.ablations}
    coords |= head_coords if per_head else {dim: names for dim, names in comparison_coords.items() if names}
    settings = {"draws": comparisons.draws, "seed": comparisons.seed, "per_head": int(per_head), "massive": massive}
    settings["intervals"] = describe_intervals(unit_name(values["tokens"]), len(unit_sizes(values["tokens"])))
    return SURGERY.label(values, coords, edit_attributes(view, heads, heads_by_layer, M, F) | settings)


def default_form(M: str | None, F: str | None) -> str | None:
    """The replacement of M: its symmetric part if neither M nor F is set."""
    return "symmetric" if M is None and F is None else M


def edit_attributes(
    view: View, heads: HeadSelection, heads_by_layer: HeadsByLayer, M: str | None, F: str | None
) -> dict[str, Any]:
    """The change as attributes of the result."""
    replacements = [
        *([] if M is None else [find_replacement(M, RELEVANCE, "M")]),
        *([] if F is None else [find_replacement(F, CONTENT, "F")]),
    ]
    return {
        "heads": "all" if heads is None and len(heads_by_layer) == view.layers else format_heads(heads_by_layer),
        "M": M or "identity",
        "F": F or "identity",
        "replaces": _join_descriptions([replacement.description for replacement in replacements]),
        "centre": Message(
            "mean of x̂ over the tokens of each text that are not massive, in every layer of the edited model"
        ),
    } | {name: str(value) for name, value in view.facts.items()}


def _join_descriptions(descriptions: list[str]) -> str:
    if len(descriptions) == 2:
        return Message("{first} and {second}", first=descriptions[0], second=descriptions[1])
    return join("", descriptions)


def trace_under(
    model: Model, text: Any, heads: HeadSelection = None, M: str | None = None, F: str | None = None
) -> Trace:
    """The Trace of one text in the model with M or F of some heads replaced (see `surgery`).

    Its points and logits are those of the edited model. Weights and displacements that it recomputes use the unchanged View.

    >>> import rheoscope as rs
    >>> model, text, step = rs.load(), "The keys to the cabinet are", "L2.resid_post"
    >>> edited = rs.trace_under(model, text, heads=model.view.head_indices(3), M="symmetric")
    >>> bool((edited.points_at(step) == model.trace(text).points_at(step)).all())
    True
    """
    operator_edits = [
        head_replacement.replacement_edit(plan, Generator())
        for plan in plan_edits(model.view, select_heads(model.view, heads), M, F)
    ]
    edits = model_edits(included_tokens(model.trace(text)), operator_edits)
    return model.trace(text, logits=model.view.unembed is not None, edit=edits)


# All selected heads at once


def measure_all_heads(
    model: Model,
    windows: list[WindowIds],
    heads_by_layer: HeadsByLayer,
    M: str | None,
    F: str | None,
    comparisons: Comparisons,
    progress: OnProgress | None = None,
) -> tuple[dict[str, Any], list[list[int]]]:
    """Every field with all selected heads changed at once, and the massive tokens of every window."""
    edit_draws = comparisons.build_edits(
        plan_edits(model.view, heads_by_layer, M, F), Generator().manual_seed(comparisons.seed)
    )
    rows: list[WindowRow] = measure_windows(
        model,
        windows,
        partial(_measure_batch, model, heads_by_layer=heads_by_layer, edit_draws=edit_draws, comparisons=comparisons),
        progress,
    )
    return kernel(rows, comparisons), [row["massive"] for row in rows]


@torch.no_grad()
def _measure_batch(
    model: Model, batch: Batch, heads_by_layer: HeadsByLayer, edit_draws: EditDraws, comparisons: Comparisons
) -> dict[int, WindowRow]:
    """Window index → its measurements. The layers before the first edit run only once."""
    first_layer = min(heads_by_layer)
    block_outputs = model.block_outputs(batch.ids)[:first_layer] if first_layer else []
    losses_by_change: dict[str, list[Tensor]] = {}
    for name, edits in iterate_edits(
        batch, heads_by_layer, edit_draws, batch_mean_outputs(batch, comparisons), comparisons
    ):
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


def kernel(rows: list[WindowRow], comparisons: Comparisons) -> dict[str, Any]:
    """Mean losses of every window, and the costs and excesses over all windows with their intervals."""
    changes, lengths = comparisons.changes, [len(row["before"]) for row in rows]
    costs = torch.stack([torch.cat([row[name] - row["before"] for row in rows]).double() for name in changes])
    costs_and_excesses = torch.stack([costs, costs[:1] - costs])
    sizes = unit_sizes(lengths)
    sums = torch.stack([unit.sum(-1) for unit in costs_and_excesses.split(sizes, -1)], -1)
    low, high = bootstrap_t_interval(sums, torch.tensor(sizes), comparisons.seed)

    def mean_losses(name: str) -> list[float]:
        return [float(row[name].double().mean()) for row in rows]

    values = {"loss_before": mean_losses("before"), "loss_after": mean_losses("edit"), "tokens": lengths}
    values |= {"kl": [row["kl"] for row in rows]}
    for index, name in enumerate(("cost", "excess")):
        values |= {name: costs_and_excesses[index].mean(-1), f"{name}_low": low[index], f"{name}_high": high[index]}
    for field, names in (("loss_control", comparisons.controls), ("loss_ablated", comparisons.ablations)):
        values |= {field: [mean_losses(name) for name in names]} if names else {}
    return values


# Checks of the arguments


def select_predicting_heads(view: View, heads: HeadSelection) -> HeadsByLayer:
    """The selected heads of a model that predicts next tokens."""
    if view.cross_heads:
        raise RheoscopeError(
            Message("surgery supports models that read one text, got an encoder-decoder"),
            Advice("model.run(pair, edit={layer: f})"),
        )
    check_predictions(view)
    return select_heads(view, heads)


def check_predictions(view: View) -> None:
    """Raise for a model that predicts no next token."""
    i, j = query_key_positions(2, 2, view.embed.device)
    if not all(bool(~block.mechanism.mask(i, j)[0, 1]) for block in view.layer_heads):
        raise RheoscopeError(
            Message("this model is bidirectional, so it predicts no next token and has no loss"),
            Advice("rs.trace_under(model, text)"),
        )
    if view.unembed is None:
        raise RheoscopeError(
            Message("this model has no unembedding, so it has no loss"), Advice("rs.trace_under(model, text)")
        )


COST = Field(("change",), "loss after a change minus the loss before it, per token, over all texts", "nats")
EXCESS = Field(
    ("change",),
    "cost of the replacement minus that of each change, over the same texts (above 0: the replacement costs more)",
    "nats",
)
SURGERY = Analysis(
    name="surgery",
    question="How much does the loss rise if M or F of some heads is replaced?",
    ask=surgery,
    needs="model",
    report_runs=(ReportRun("surgery", 0, options=("heads", "M", "F", "per_head", "comparisons")),),
    fields={
        "loss_before": Field(("text",), "mean −log p of the next token of each text, in the unchanged model", "nats"),
        "tokens": Field(("text",), "number of predicted tokens of each text"),
        "loss_after": Field(("text",), "mean −log p of the next token with M or F of the heads replaced", "nats"),
        "kl": Field(("text",), "mean over tokens of KL(unchanged model ‖ edited model)", "nats"),
        "loss_control": Field(
            ("control", "text"),
            "mean −log p under a random control, mean over draws. The control is the rotated change (size), the "
            "change scaled to the edit on the text (cloud), or the rotated replacement (spectrum).",
            "nats",
            basis_dependent=True,
        ),
        "loss_ablated": Field(
            ("ablation", "text"),
            "mean −log p with the heads ablated: outputs replaced by their mean over the text, or uniform attention",
            "nats",
        ),
    }
    | with_interval("cost", COST)
    | with_interval("excess", EXCESS)
    | FIELDS,
)
