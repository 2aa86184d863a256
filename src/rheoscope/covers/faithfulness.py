"""Which ranking of heads is right? Keep the first of them, silence the others, and look at what the model still says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from rheoscope.covers.ablation import Means, mean_ablation_by_row, mean_outputs
from rheoscope.covers.bootstrap import RESAMPLES, resampled
from rheoscope.covers.pieces import kept_tokens, most_texts
from rheoscope.covers.reversed_attention import at_outputs, backward, maps, target_id
from rheoscope.shapes import RheoscopeError
from rheoscope.space.dataset import dataset
from rheoscope.space.model import Model
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

DEFINITIONS = {
    "importance": "what the ranking orders heads by, largest first; NaN for the random one",
    "loss": "−log p of the target when the given share of heads is kept and every other gives its mean, in nats",
    "logit_difference": "logit of the target less that of the foil under the same",
    "loss_before": "−log p of the target in the model as it is",
    "curve": "the loss when the given share of heads is kept, mean over prompts",
    "spearman": "rank correlation of two rankings over all heads, mean over prompts",
    "lost": "mean over the shares kept and over prompts of the loss less that of the model as it is: lower is more faithful",
    "lost_more": "what the ranking loses less what the rival does, over the same prompts: above 0 the rival is more faithful",
} | {
    f"{name}_{end}": f"{'lower' if end == 'low' else 'upper'} end of the 95 % bootstrap interval of {name} over prompts"
    for name in ("curve", "spearman", "lost", "lost_more")
    for end in ("low", "high")
}
RANKINGS = {
    "reversed": "‖R‖, the gradient of the scores",
    "forward": "‖Δ_h‖, what the head takes from the tokens and adds",
    "attribution": "first-order change of the loss when the head gives its mean: Σ_i ⟨∂L/∂o_i, ō − o_i⟩",
    "mediation": "change of the loss when the head alone gives its mean",
    "random": "any order",
}
KEPT = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
Grid = Float[Tensor, "layer head"]
Said = tuple[float, float]
"""−log p of the target, and its logit less the foil's."""


@dataclass(frozen=True, eq=False)
class Prompt:
    """A text, what shall be said at its end and instead of what, and what heads give it on average."""

    trace: Trace
    target: int
    foil: int | None
    pulled: list[Float[Tensor, "n d"]]
    means: Means


def faithfulness(
    model: Model,
    prompts: Sequence[Any],
    targets: Sequence[str | int],
    foils: Sequence[str | int] | None = None,
    kept: Sequence[float | int] = KEPT,
    draws: int = 3,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """Rankings of heads by what they are said to matter, and what is left of the answer when only the first are kept.

    **Answers** "do the heads with a large gradient of the scores carry the answer, more than those that merely write much?"

    **Formula** reversed: ‖R‖; forward: ‖Δ_h‖; attribution (patching): Σ_i ⟨∂L/∂o_i, ō − o_i⟩; mediation: the change of the loss
    when the head alone is ablated; random. To ablate is to give every token the mean ō of the head's output over the tokens of the prompt.

    **Gives** (ranking, prompt, layer, head): `importance`; (ranking, prompt, kept): `loss` and, with `foils`, `logit_difference`; (prompt):
    `loss_before`; (ranking, kept): `curve`; (ranked, other): `spearman`; (ranking): `lost`; (ranking, rival): `lost_more`, these four with
    bootstrap intervals over prompts (`lost_low`, `lost_high`, …; NaN for fewer than five). Targets stand at the end of their prompts.

    **Laws** all heads kept is the model itself, bit for bit; none kept is the same for every ranking; attribution is the derivative of
    the loss along the ablation; no gauge moves any number.

    **Cost** mediation runs the prompt once a head, side by side: prompts, not books.

    **Source** Katz and Wolf 2024 (arXiv:2412.17019); attribution patching: Nanda 2023; causal mediation: Vig et al. 2020.

    **Siblings** `reversed_attention`, `attention_patching`; `surgery` changes what heads compute instead of silencing them.

    >>> import rheoscope as rs
    >>> found = rs.faithfulness(rs.load(), ["The keys to the cabinet are"], [" on"], kept=(0.0, 0.5, 1.0))
    >>> bool((found.loss.sel(kept=1.0) == found.loss_before).all())
    True
    """
    _checked(prompts, targets, foils, kept, draws)
    generator, rows = Generator().manual_seed(seed), []
    for at, (text, target) in enumerate(zip(prompts, targets, strict=True)):
        one = _opened(model, text, target, None if foils is None else foils[at])
        scores = {
            "reversed": reversed_norms(one),
            "forward": forward_norms(one.trace),
            "attribution": attributions(one),
            "mediation": mediations(model, one),
        }
        rows.append((one, scores, _curves(model, one, scores, list(map(float, kept)), draws, generator)))
        if progress is not None:
            progress(at + 1, len(prompts))
    return _dataset(model, rows, list(map(float, kept)), draws, seed)


def _opened(model: Model, text: Any, target: str | int, foil: str | int | None) -> Prompt:
    trace = model.trace(text, logits=True)
    _, pulled, wanted, _ = backward(model, trace, target, -1)
    means = mean_outputs(trace, kept_tokens(trace))
    return Prompt(trace, wanted, None if foil is None else target_id(model, foil), pulled, means)


# The rankings


@torch.no_grad()
def reversed_norms(one: Prompt) -> Grid:
    layers = enumerate(one.pulled)
    return torch.stack([torch.stack([R.norm() for R in maps(one.trace, layer, pulled)]) for layer, pulled in layers])


def forward_norms(trace: Trace) -> Grid:
    return torch.stack([trace.parts(layer)[0].flatten(1).norm(dim=-1) for layer in range(trace.view.layers)])


def attributions(one: Prompt) -> Grid:
    """How the loss changes, to first order, as every head in turn goes to its mean."""
    found = []
    for layer, (heads, mean) in enumerate(zip(one.trace.view.blocks, one.means, strict=True)):
        x = one.trace.read_by(layer)
        g = at_outputs(heads, x, one.pulled[layer])
        with torch.no_grad():
            found.append((g * (mean[:, None] - heads.outputs(x))).sum((-2, -1)))
    return torch.stack(found)


def mediations(model: Model, one: Prompt) -> Grid:
    """How the loss changes as every head in turn is set to its mean."""
    layers, heads = one.trace.view.layers, one.trace.view.heads
    alone = torch.eye(layers * heads, dtype=torch.bool).unflatten(-1, (layers, heads))
    losses = [loss for loss, _ in said_without(model, one, alone)]
    return torch.tensor(losses, dtype=torch.float64).unflatten(0, (layers, heads)) - as_it_is(one)[0]


# The curves


def _curves(
    model: Model, one: Prompt, scores: dict[str, Grid], kept: list[float], draws: int, generator: Generator
) -> dict[str, list[Said]]:
    """Ranking → (loss, logit difference) at every share kept; the random one is a mean over draws."""
    orders = {name: [grid.flatten().argsort(descending=True, stable=True).cpu()] for name, grid in scores.items()}
    layers, heads = one.trace.view.layers, one.trace.view.heads
    orders["random"] = [torch.randperm(layers * heads, generator=generator) for _ in range(draws)]
    asked = [(name, share, order) for name, some in orders.items() for share in kept for order in some]
    silent = torch.ones(len(asked), layers * heads, dtype=torch.bool)
    for row, (_, share, order) in zip(silent, asked, strict=True):
        row[order[: round(share * len(order))]] = False
    told = iter(said_without(model, one, silent.unflatten(-1, (layers, heads))))
    return {name: [_mean([next(told) for _ in some]) for _ in kept] for name, some in orders.items()}


def _mean(pairs: list[Said]) -> Said:
    return sum(a for a, _ in pairs) / len(pairs), sum(b for _, b in pairs) / len(pairs)


@torch.no_grad()
def said_without(model: Model, one: Prompt, silent: Bool[Tensor, "rows layer head"]) -> list[Said]:
    """Loss and logit difference with the silent heads of each row at their mean: copies of the prompt, side by side.

    Where no head is silent the model is as it is, and is not run again.
    """
    found = [as_it_is(one)] * len(silent)
    changed, most = silent.flatten(1).any(-1).nonzero()[:, 0], most_texts(model, len(one.trace))
    for first in range(0, len(changed), most):
        rows = changed[first : first + most]
        ids = one.trace.ids.expand(len(rows), -1)
        logits = model.run_batch(ids, mean_ablation_by_row(one.means, silent[rows]))
        for row, told in zip(rows.tolist(), _said(one, logits[:, -1]), strict=True):
            found[row] = told
    return found


def as_it_is(one: Prompt) -> Said:
    """What the model itself says."""
    assert one.trace.logits is not None
    return _said(one, one.trace.logits[-1:])[0]


def _said(one: Prompt, last: Float[Tensor, "rows vocabulary"]) -> list[Said]:
    """Loss of the target at the end, and its logit less the foil's; without a foil the difference is NaN."""
    last = last.to(torch.promote_types(last.dtype, torch.float32))
    losses = (-last.log_softmax(-1)[:, one.target]).tolist()
    apart = [float("nan")] * len(last) if one.foil is None else (last[:, one.target] - last[:, one.foil]).tolist()
    return list(zip(losses, apart, strict=True))


def spearman(a: Float[Tensor, " m"], b: Float[Tensor, " m"]) -> float:
    """Rank correlation of two orders without ties."""
    ranks = torch.stack([x.argsort().argsort().double() for x in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def _dataset(model: Model, rows: list[Any], kept: list[float], draws: int, seed: int) -> "xarray.Dataset":
    names, ranked = list(RANKINGS), list(RANKINGS)[:-1]
    scored = torch.stack([torch.stack([scores[name].cpu().double() for name in ranked]) for _, scores, _ in rows], 1)
    curves = torch.tensor([[row[2][name] for row in rows] for name in names], dtype=torch.float64)
    before = torch.tensor([as_it_is(one)[0] for one, *_ in rows], dtype=torch.float64)
    lost = (curves[..., 0] - before[:, None]).mean(-1)
    values: dict[str, tuple[tuple[str, ...], Any]] = {
        "importance": (
            ("ranking", "prompt", "layer", "head"),
            torch.cat([scored, torch.full_like(scored[:1], torch.nan)]),
        ),
        "loss": (("ranking", "prompt", "kept"), curves[..., 0]),
        "loss_before": (("prompt",), before),
    }
    if not bool(curves[..., 1].isnan().any()):
        values["logit_difference"] = ("ranking", "prompt", "kept"), curves[..., 1]
    over_prompts = {
        "curve": (("ranking", "kept"), curves[..., 0].mT),
        "spearman": (("ranked", "other"), _alike(scored)),
        "lost": (("ranking",), lost),
        "lost_more": (("ranking", "rival"), lost[:, None] - lost),
    }
    for name, (dims, x) in over_prompts.items():
        low, high = resampled(x, [1] * len(rows), Generator().manual_seed(seed))
        values |= {name: (dims, x.mean(-1)), f"{name}_low": (dims, low), f"{name}_high": (dims, high)}
    coords = {
        "ranking": names,
        "rival": names,
        "ranked": ranked,
        "other": ranked,
        "prompt": range(len(rows)),
        "kept": kept,
    }
    coords |= {"layer": range(model.view.layers), "head": range(model.view.heads)}
    return dataset(values, DEFINITIONS, coords, _attributes(model, rows, draws, seed))


def _alike(scored: Float[Tensor, "ranked prompt layer head"]) -> Float[Tensor, "ranked ranked prompt"]:
    """Rank correlations of every two rankings, prompt by prompt."""
    rows = scored.flatten(2)
    return torch.tensor(
        [[[spearman(a, b) for a, b in zip(one, other, strict=True)] for other in rows] for one in rows],
        dtype=torch.float64,
    )


def _attributes(model: Model, rows: list[Any], draws: int, seed: int) -> dict[str, Any]:
    return {
        "analysis": "faithfulness",
        "rankings": "; ".join(f"{name}: {told}" for name, told in RANKINGS.items()),
        "targets": [one.target for one, *_ in rows],
        "texts": [one.trace.text for one, *_ in rows],
        "draws": draws,
        "seed": seed,
        "bootstrap": f"{RESAMPLES} draws of prompts",
    } | {name: str(value) for name, value in model.view.facts.items()}


def _checked(
    prompts: Sequence[Any],
    targets: Sequence[str | int],
    foils: Sequence[str | int] | None,
    kept: Sequence[float | int],
    draws: int,
) -> None:
    if isinstance(prompts, str) or not len(prompts) or len(prompts) != len(targets):
        came = "one text" if isinstance(prompts, str) else f"{len(prompts)} prompts and {len(targets)} targets"
        raise RheoscopeError(f"every prompt has one target, got {came}; type faithfulness(model, [text], [target])")
    if foils is not None and len(foils) != len(prompts):
        raise RheoscopeError(
            f"every prompt has one foil, got {len(foils)} for {len(prompts)}; type foils=[…] of that length"
        )
    if draws < 1 or not len(kept) or not all(0 <= share <= 1 for share in kept):
        raise RheoscopeError(
            f"shares of heads lie in 0 to 1 and a random order is drawn at least once, got kept={list(kept)}, draws={draws}; "
            "type kept=(0, 0.5, 1), draws=3"
        )
