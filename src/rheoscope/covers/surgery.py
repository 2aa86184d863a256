"""What does it cost to change M or F? The loss of a running model whose heads have another form or another content."""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from rheoscope.attention.mechanism import positions
from rheoscope.covers import operation
from rheoscope.covers.ablation import mean_ablation, mean_outputs, uniform_ablation
from rheoscope.covers.operation import Chosen, Operation, Plan, chosen_heads, live, plans
from rheoscope.covers.replacements import CONTENT, RELEVANCE, named
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Edits, Hook, Model
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
CONTROLS = {"size": operation.same_size, "cloud": operation.same_on_cloud, "spectrum": operation.same_spectrum}
ABLATIONS = ("mean", "uniform")
AGAINST = (*CONTROLS, *ABLATIONS)
RESAMPLES = 2000
CHUNK = 32
"""Tokens of a unit of the bootstrap where there are few texts."""
FEWEST = 5
"""Units below which a bootstrap says nothing."""
Progress = Callable[[int, int], None]


def surgery(
    model: Model,
    text: Any,
    heads: Sequence[tuple[int, int]] | int | None = None,
    M: str | None = None,
    F: str | None = None,
    against: Sequence[str] = AGAINST,
    window: int = 512,
    draws: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> "xarray.Dataset":
    """What a change of M or F costs: the loss before, after, and under changes that mean nothing.

    **Answers** "does the model need the asymmetry of this head (its offset, its rank, …), or only something of that size?"

    **Formula** s_ij = (x̂_i − x̄) M(δ) (x̂_j − x̄)ᵀ + the rest; only the first part changes, M → M', so what the mean of the cloud and the
    biases ask for stays (`…_naive` changes x̂_i M x̂_jᵀ whole). Δ(x_i) = Σ_j α_ij ((x̂_j − x̄) F + the rest) the same for F → F'.
    M: symmetric, symmetric_scores, skew, at_zero, positive, 'rank 8'; F: symmetric, 'rank 8'; `identity` and `…_naive` for both.

    **Shapes** `text`: one or a list, cut into pieces of `window` tokens. `heads`: [(layer, head), …], a layer, or None for all.

    **Gives** (text): `loss_before`, `loss_after`, `kl`, `tokens`; (control, text): `loss_control`; (ablation, text): `loss_ablated`;
    (change): `cost`, and `excess` of the edit above each change, with bootstrap intervals (`cost_low`, `cost_high`, …) over texts, or over
    chunks where there are fewer than five.

    **Laws** `identity` changes no bit; equal to scores computed from dense M(δ) in every family; controls have the size and the
    spectrum of the edit at every offset; the model is as before on exit; no gauge moves any number.

    **Limits** x̄ is the mean over all tokens of the text that are not massive, of the running, edited model: so a token's edited
    scores know a little of what comes after it. Under QK-norm the realised scales of queries and keys stay.

    **Siblings** `operated` gives the points under the same change; `operators` says how symmetric M is, this what that is worth.

    >>> import rheoscope as rs
    >>> found = rs.surgery(rs.load(), "The keys to the cabinet are on the table", heads=[(2, 1)], M="symmetric")
    >>> found.loss_control.dims, bool(abs(found.cost.sel(change="edit") - (found.loss_after - found.loss_before)) < 1e-6)
    (('control', 'text'), True)
    """
    chosen = _checked(model.view, heads, against, window, draws)
    planned = plans(model.view, chosen, M, F)
    pieces = _pieces(model, text, window)
    generator = Generator().manual_seed(seed)
    made = _made(planned, [name for name in against if name in CONTROLS], draws, generator)
    rows = []
    for at, ids in enumerate(pieces):
        rows.append(_measured(model, ids, chosen, made, [name for name in against if name in ABLATIONS]))
        if progress is not None:
            progress(at + 1, len(pieces))
    attributes = {
        "analysis": "surgery",
        "heads": _told(heads),
        "M": M or "identity",
        "F": F or "identity",
        "replaces": " and ".join(
            [
                *([] if M is None else [named(M, RELEVANCE, "M").says]),
                *([] if F is None else [named(F, CONTENT, "F").says]),
            ]
        ),
        "centre": "mean of x̂ over the tokens of each text that are not massive, layer by layer, as the edited model runs",
        "massive": [row["massive"] for row in rows],
        "draws": draws,
        "seed": seed,
    }
    return _dataset(rows, list(against), Generator().manual_seed(seed), attributes | _provenance(model.view))


def operated(
    model: Model,
    text: Any,
    heads: Sequence[tuple[int, int]] | int | None = None,
    M: str | None = None,
    F: str | None = None,
) -> Trace:
    """The points (and logits) of one text under a change of M or F, for every analysis of the flow (see `surgery`).

    What the Trace recomputes, its weights and displacements, is by the View, which is not changed.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> after = rs.operated(model, "The keys to the cabinet are", heads=3, M="symmetric")
    >>> bool((after.at("L2.resid_post") == model.trace("The keys to the cabinet are").at("L2.resid_post")).all())
    True
    """
    made = [operation.edit(plan, Generator()) for plan in plans(model.view, chosen_heads(model.view, heads), M, F)]
    trace = model.trace(text)
    edits, hooks = live(trace, kept_tokens(trace), made)
    return model.trace(text, logits=model.view.unembed is not None, edit=edits, hooks=hooks)


# One text


def _measured(
    model: Model, ids: Int[Tensor, " n"], chosen: Chosen, made: dict[str, list[list[Operation]]], ablations: list[str]
) -> dict[str, Any]:
    """Losses (n − 1) of one piece of text under every change, and the divergence of the edit."""
    trace = model.trace(ids, logits=True)
    assert trace.logits is not None
    kept = kept_tokens(trace)
    found: dict[str, Any] = {"before": losses(trace.logits, ids), "massive": trace.massive()}
    for name, some in made.items():
        logits = [_run(model, ids, *live(trace, kept, one)) for one in some]
        found[name] = torch.stack([losses(one, ids) for one in logits]).mean(0)
        if name == "edit":
            found["kl"] = divergence(trace.logits, logits[0])
    if "mean" in ablations:
        found["mean"] = losses(_run(model, ids, mean_ablation(mean_outputs(trace, kept), chosen), {}), ids)
    if "uniform" in ablations:
        found["uniform"] = losses(_run(model, ids, uniform_ablation(chosen), {}), ids)
    return found


@torch.no_grad()
def _run(model: Model, ids: Tensor, edits: Edits, hooks: dict[str, Hook]) -> Float[Tensor, "n vocabulary"]:
    return model.run(ids, edit=edits, hooks=hooks)


def kept_tokens(trace: Trace) -> Bool[Tensor, " n"]:
    """Which tokens make the mean of a cloud: those that are not massive, or all where none is left."""
    kept = torch.ones(len(trace), dtype=torch.bool, device=trace.points.device)
    kept[trace.massive()] = False
    return kept if bool(kept.any()) else ~kept


def losses(logits: Float[Tensor, "n vocabulary"], ids: Int[Tensor, " n"]) -> Float[Tensor, " m"]:
    """−log p of every next token, in float32 or better."""
    exact = torch.promote_types(logits.dtype, torch.float32)
    return torch.nn.functional.cross_entropy(logits[:-1].to(exact), ids[1:].to(logits.device), reduction="none").cpu()


def divergence(before: Float[Tensor, "n vocabulary"], after: Float[Tensor, "n vocabulary"]) -> float:
    """Mean over tokens of KL(before ‖ after)."""
    exact = torch.promote_types(before.dtype, torch.float32)
    p, q = (x.to(exact).log_softmax(-1) for x in (before, after))
    return float((p.exp() * (p - q)).sum(-1).mean())


# All of them


def _made(
    planned: list[Plan], controls: list[str], draws: int, generator: Generator
) -> dict[str, list[list[Operation]]]:
    """Name → one list of operations a draw, the edit first; made once for all texts."""
    with torch.no_grad():
        made = {"edit": [[operation.edit(plan, generator) for plan in planned]]}
        for name in controls:
            made[name] = [[CONTROLS[name](plan, generator) for plan in planned] for _ in range(draws)]
    return made


def _dataset(
    rows: list[dict[str, Any]], against: list[str], generator: Generator, attributes: dict[str, Any]
) -> "xarray.Dataset":
    import xarray as xr

    controls, ablations = ([name for name in group if name in against] for group in (CONTROLS, ABLATIONS))
    changes = ["edit", *controls, *ablations]
    costs = torch.stack([torch.cat([row[name] - row["before"] for row in rows]).double() for name in changes])
    excess = costs[:1] - costs
    low, high, unit = interval(torch.cat([costs, excess]), [len(row["before"]) for row in rows], generator)
    ends = [part.numpy() for end in (low, high) for part in end.split(len(changes))]

    def means(names: list[str]) -> Any:
        return [[float(row[name].double().mean()) for row in rows] for name in names]

    values: dict[str, tuple[tuple[str, ...], Any]] = {
        "loss_before": (("text",), means(["before"])[0]),
        "loss_after": (("text",), means(["edit"])[0]),
        "kl": (("text",), [row["kl"] for row in rows]),
        "tokens": (("text",), [len(row["before"]) for row in rows]),
        "cost": (("change",), costs.mean(-1).numpy()),
        "cost_low": (("change",), ends[0]),
        "cost_high": (("change",), ends[2]),
        "excess": (("change",), excess.mean(-1).numpy()),
        "excess_low": (("change",), ends[1]),
        "excess_high": (("change",), ends[3]),
    }
    values |= {"loss_control": (("control", "text"), means(controls))} if controls else {}
    values |= {"loss_ablated": (("ablation", "text"), means(ablations))} if ablations else {}
    data = {name: xr.Variable(dims, x, {"definition": DEFINITIONS[name]}) for name, (dims, x) in values.items()}
    coords = {"text": range(len(rows)), "change": changes}
    coords |= {"control": controls} if controls else {}
    coords |= {"ablation": ablations} if ablations else {}
    return xr.Dataset(data, coords, attributes | {"bootstrap": f"{RESAMPLES} draws of {unit}"})


def interval(
    costs: Float[Tensor, "change m"], lengths: list[int], generator: Generator
) -> tuple[Float[Tensor, " change"], Float[Tensor, " change"], str]:
    """The 95 % interval of the mean cost when texts (or, where they are few, chunks of them) are drawn anew; NaN for too few."""
    unit = "texts" if len(lengths) >= FEWEST else f"chunks of {CHUNK} tokens"
    chunks = [len(part) for length in lengths for part in torch.arange(length).split(CHUNK)]
    sizes = lengths if len(lengths) >= FEWEST else chunks
    if len(sizes) < FEWEST:
        nothing = torch.full_like(costs[:, 0], torch.nan)
        return nothing, nothing, unit
    sums = torch.stack([part.sum(-1) for part in costs.split(sizes, -1)], -1)
    drawn = torch.randint(len(sizes), (RESAMPLES, len(sizes)), generator=generator)
    means = sums[:, drawn].sum(-1) / torch.tensor(sizes)[drawn].sum(-1)
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=means.dtype), -1)
    return low, high, unit


# What comes from a user


def _checked(
    view: View, heads: Sequence[tuple[int, int]] | int | None, against: Sequence[str], window: int, draws: int
) -> Chosen:
    if view.crossing:
        raise RheoscopeError("surgery reads one text, this model reads pairs; type model.run(pair, edit={layer: f})")
    i, j = positions(2, 2, view.embed.device)
    if not all(bool(~block.mechanism.mask(i, j)[0, 1]) for block in view.blocks):
        raise RheoscopeError(
            "this model reads both ways, so it predicts no next token; type rs.operated(…) for its points under the change"
        )
    if view.unembed is None:
        raise RheoscopeError("this model has no unembedding, so it has no loss; type rs.operated(…) for its points")
    wrong = [name for name in against if name not in AGAINST]
    if wrong:
        raise RheoscopeError(f"unknown comparison {wrong[0]!r}; type some of {', '.join(AGAINST)}")
    if window < 2 or draws < 1:
        raise RheoscopeError(
            f"a window has at least 2 tokens and a control 1 draw, got {window} and {draws}; type window=512, draws=1"
        )
    return chosen_heads(view, heads)


def _pieces(model: Model, text: Any, window: int) -> list[Int[Tensor, " n"]]:
    """Every text as pieces of at most `window` tokens that predict at least one."""
    many = isinstance(text, list | tuple) and bool(text) and not isinstance(text[0], Integral)
    longest = min(window, model.view.facts.get("context") or window)
    pieces = [piece for one in (text if many else [text]) for piece in _ids(model, one).split(longest)]
    found = [piece for piece in pieces if len(piece) > 1]
    if not found:
        raise RheoscopeError("a loss needs at least 2 tokens; type a longer text")
    return found


def _ids(model: Any, text: Any) -> Int[Tensor, " n"]:
    """Ids of a text that may be longer than the model's context: it is cut afterwards."""
    if isinstance(text, str) and text and model.tokenizer is not None:
        return torch.tensor(model.encode(text)).long()
    return model.ids(text)


def _told(heads: Sequence[tuple[int, int]] | int | None) -> str:
    if heads is None:
        return "all"
    return f"L{heads}" if isinstance(heads, int) else " ".join(f"L{layer}.H{head}" for layer, head in heads)


def _provenance(view: View) -> dict[str, str]:
    return {name: str(value) for name, value in view.facts.items()}
