"""What does it cost to change M or F? The loss of a running model whose heads have another form or another content."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from rheoscope.attention.mechanism import positions
from rheoscope.covers import operation
from rheoscope.covers.against import EVERYTHING, Against, Made, means_of, running
from rheoscope.covers.bootstrap import RESAMPLES, interval
from rheoscope.covers.operation import Chosen, chosen_heads, live, plans
from rheoscope.covers.pieces import Batch, batches, divergence, kept_tokens, losses, pieces
from rheoscope.covers.replacements import CONTENT, RELEVANCE, named
from rheoscope.shapes import RheoscopeError
from rheoscope.space.dataset import dataset
from rheoscope.space.model import Model
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray

DEFINITIONS = {
    "loss_before": "mean −log p of the next token of each text, in nats, of the model as it is",
    "loss_after": "the same with the heads' operators replaced",
    "loss_control": "the same under a control, mean over draws: the change turned at random (size: the same singular values at every "
    "offset), scaled to the size that the edit has on the text (cloud), or the replacement turned at random (spectrum)",
    "loss_ablated": "the same with the heads silenced: each output its mean over the text, or attention uniform",
    "kl": "mean over tokens of KL(model as it is ‖ model with the replacement), in nats",
    "tokens": "how many next tokens of the text were predicted",
    "cost": "loss after a change less the loss before it, in nats per token, over all texts",
    "cost_low": "lower end of the 95 % bootstrap interval of the cost",
    "cost_high": "upper end of the 95 % bootstrap interval of the cost",
    "excess": "cost of the replacement less that of each change, over the same texts: above 0 it costs more",
    "excess_low": "lower end of the 95 % bootstrap interval of the excess",
    "excess_high": "upper end of the 95 % bootstrap interval of the excess",
}
Asked = Sequence[tuple[int, int]] | int | None
"""Heads: some, those of a layer, or (None) all."""
Progress = Callable[[int, int], None]


def surgery(
    model: Model,
    text: Any,
    heads: Asked = None,
    M: str | None = None,
    F: str | None = None,
    against: Against = EVERYTHING,
    progress: Progress | None = None,
) -> "xarray.Dataset":
    """What a change of M or F costs: the loss before, after, and under changes that mean nothing.

    **Answers** "does the model need the asymmetry of this head (its offset, its rank, …), or only something of that size?"

    **Formula** s_ij = (x̂_i − x̄) M(δ) (x̂_j − x̄)ᵀ + the rest; only the first part changes, M → M', so what the mean of the cloud and the
    biases ask for stays (`…_naive` changes x̂_i M x̂_jᵀ whole). Δ(x_i) = Σ_j α_ij ((x̂_j − x̄) F + the rest) the same for F → F'.
    M: symmetric, symmetric_scores, skew, at_zero, positive, 'rank 8'; F: symmetric, 'rank 8'; `identity` and `…_naive` for both.

    **Shapes** `text`: one or a list, cut into pieces of 512 tokens (`rs.pieces` cuts otherwise); pieces of one length run side by side.
    `heads`: [(layer, head), …], a layer, or None for all. `against`: `rs.Against(("size", "mean"), draws=3, seed=1)`.

    **Gives** (text): `loss_before`, `loss_after`, `kl`, `tokens`; (control, text): `loss_control`; (ablation, text): `loss_ablated`;
    (change): `cost`, and `excess` of the edit above each change, with bootstrap intervals (`cost_low`, `cost_high`, …) over texts, or over
    chunks where there are fewer than five.

    **Laws** `identity` changes no bit; equal to scores computed from dense M(δ) in every family; controls have the size and the
    spectrum of the edit at every offset; texts side by side give what each gives alone; the model is as before on exit; no gauge
    moves any number.

    **Limits** x̄ is the mean over all tokens of the text that are not massive, of the running, edited model: so a token's edited
    scores know a little of what comes after it. Under QK-norm the realised scales of queries and keys stay.

    **Siblings** `surgery_by_head` asks every head alone; `decay` what later layers make of the change; `operated` gives the points under
    it; `operators` says how symmetric M is, this what that is worth.

    >>> import rheoscope as rs
    >>> found = rs.surgery(rs.load(), "The keys to the cabinet are on the table", heads=[(2, 1)], M="symmetric")
    >>> found.loss_control.dims, bool(abs(found.cost.sel(change="edit") - (found.loss_after - found.loss_before)) < 1e-6)
    (('control', 'text'), True)
    """
    chosen, cut = checked(model.view, heads), pieces(model, text)
    made = against.made(plans(model.view, chosen, M, F), Generator().manual_seed(against.seed))
    rows: dict[int, dict[str, Any]] = {}
    for batch in batches(model, cut):
        rows |= _measured(model, batch, chosen, made, against)
        if progress is not None:
            progress(len(rows), len(cut))
    inputs = [rows[at] for at in range(len(cut))]
    return _dataset(inputs, against, attributes(model.view, "surgery", heads, M, F, against))


def attributes(
    view: View, analysis: str, heads: Asked, M: str | None, F: str | None, against: Against
) -> dict[str, Any]:
    """What was changed, and against what, as results carry it."""
    replaced = [*([] if M is None else [named(M, RELEVANCE, "M")]), *([] if F is None else [named(F, CONTENT, "F")])]
    return {
        "analysis": analysis,
        "heads": _told(heads),
        "M": M or "identity",
        "F": F or "identity",
        "replaces": " and ".join(one.says for one in replaced),
        "centre": "mean of x̂ over the tokens of each text that are not massive, layer by layer, as the edited model runs",
        "draws": against.draws,
        "seed": against.seed,
    } | {name: str(value) for name, value in view.facts.items()}


def operated(model: Model, text: Any, heads: Asked = None, M: str | None = None, F: str | None = None) -> Trace:
    """The points (and logits) of one text under a change of M or F, for every analysis of the flow (see `surgery`).

    What the Trace recomputes, its weights and displacements, is by the View, which is not changed.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> after = rs.operated(model, "The keys to the cabinet are", heads=3, M="symmetric")
    >>> bool((after.at("L2.resid_post") == model.trace("The keys to the cabinet are").at("L2.resid_post")).all())
    True
    """
    made = [operation.edit(plan, Generator()) for plan in plans(model.view, chosen_heads(model.view, heads), M, F)]
    edits = live(kept_tokens(model.trace(text)), made)
    return model.trace(text, logits=model.view.unembed is not None, edit=edits)


# Some texts side by side


@torch.no_grad()
def _measured(model: Model, batch: Batch, chosen: Chosen, made: Made, against: Against) -> dict[int, dict[str, Any]]:
    """Number of a piece → its losses (m) under every change, and the divergence of the edit; nothing before the first edit runs twice."""
    first = min(chosen)
    given = model.passed(batch.ids)[:first] if first else []
    after: dict[str, list[Tensor]] = {}
    for name, edits in running(batch, chosen, made, means_of(batch, against), against):
        logits = model.run_batch(batch.ids, edits, given=given)
        after.setdefault(name, []).append(losses(logits, batch.ids))
        if name == "edit":
            apart = divergence(batch.logits, logits).tolist()
    found = {name: torch.stack(draws).mean(0).cpu() for name, draws in after.items()} | {"before": batch.before.cpu()}
    return {
        piece: {name: x[at] for name, x in found.items()} | {"kl": apart[at], "massive": batch.traces[at].massive()}
        for at, piece in enumerate(batch.which)
    }


def _dataset(rows: list[dict[str, Any]], against: Against, attributes: dict[str, Any]) -> "xarray.Dataset":
    changes, lengths = against.changes, [len(row["before"]) for row in rows]
    costs = torch.stack([torch.cat([row[name] - row["before"] for row in rows]).double() for name in changes])
    excess = costs[:1] - costs
    low, high, unit = interval(torch.cat([costs, excess]), lengths, Generator().manual_seed(against.seed))

    def means(names: list[str]) -> Any:
        return [[float(row[name].double().mean()) for row in rows] for name in names]

    values: dict[str, tuple[tuple[str, ...], Any]] = {
        "loss_before": (("text",), means(["before"])[0]),
        "loss_after": (("text",), means(["edit"])[0]),
        "kl": (("text",), [row["kl"] for row in rows]),
        "tokens": (("text",), lengths),
        "cost": (("change",), costs.mean(-1)),
        "cost_low": (("change",), low[: len(changes)]),
        "cost_high": (("change",), high[: len(changes)]),
        "excess": (("change",), excess.mean(-1)),
        "excess_low": (("change",), low[len(changes) :]),
        "excess_high": (("change",), high[len(changes) :]),
    }
    coords: dict[str, Any] = {"text": range(len(rows)), "change": changes}
    for field, dim, names in (
        ("loss_control", "control", against.controls),
        ("loss_ablated", "ablation", against.ablations),
    ):
        if names:
            values[field], coords[dim] = ((dim, "text"), means(names)), names
    told = {"massive": [row["massive"] for row in rows], "bootstrap": f"{RESAMPLES} draws of {unit}"}
    return dataset(values, DEFINITIONS, coords, attributes | told)


# What comes from a user


def checked(view: View, heads: Asked) -> Chosen:
    """The heads asked for, of a model that predicts next tokens."""
    if view.crossing:
        raise RheoscopeError("surgery reads one text, this model reads pairs; type model.run(pair, edit={layer: f})")
    i, j = positions(2, 2, view.embed.device)
    if not all(bool(~block.mechanism.mask(i, j)[0, 1]) for block in view.blocks):
        raise RheoscopeError(
            "this model reads both ways, so it predicts no next token; type rs.operated(…) for its points under the change"
        )
    if view.unembed is None:
        raise RheoscopeError("this model has no unembedding, so it has no loss; type rs.operated(…) for its points")
    return chosen_heads(view, heads)


def _told(heads: Asked) -> str:
    if heads is None:
        return "all"
    return f"L{heads}" if isinstance(heads, int) else " ".join(f"L{layer}.H{head}" for layer, head in heads)
