"""Which ranking of heads is right? Keep the first of them, silence the others, and look at what the model still says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rheoscope.covers.ablation import Means, mean_ablation, mean_outputs
from rheoscope.covers.operation import Chosen
from rheoscope.covers.reversed_attention import at_outputs, backward, of_one, target_id
from rheoscope.covers.surgery import kept_tokens
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

DEFINITIONS = {
    "importance": "what the ranking orders heads by, largest first; NaN for the random one",
    "loss": "−log p of the target when the given share of heads is kept and every other gives its mean, in nats",
    "logit_difference": "logit of the target less that of the foil under the same",
    "loss_before": "−log p of the target in the model as it is",
    "spearman": "rank correlation of two rankings over all heads, mean over prompts",
    "lost": "mean over the shares kept and over prompts of the loss less that of the model as it is: lower is more faithful",
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


@dataclass(frozen=True, eq=False)
class Prompt:
    """A text, what shall be said at its end and instead of what, and what heads give it on average."""

    trace: Trace
    target: int
    foil: int | None
    loss: Tensor
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
    `loss_before`; (ranking, other): `spearman`; (ranking): `lost`. Targets stand at the end of their prompts.

    **Laws** all heads kept is the model itself, bit for bit; none kept is the same for every ranking; attribution is the derivative of
    the loss along the ablation; no gauge moves any number.

    **Cost** mediation runs the model once a head: prompts, not books.

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
    trace = model.trace(text)
    loss, pulled, wanted, _ = backward(model, trace, target, -1)
    means = mean_outputs(trace, kept_tokens(trace))
    return Prompt(trace, wanted, None if foil is None else target_id(model, foil), loss, pulled, means)


# The rankings


@torch.no_grad()
def reversed_norms(one: Prompt) -> Grid:
    view = one.trace.view
    return torch.stack(
        [
            torch.stack([of_one(one.trace, layer, head, pulled).norm() for head in range(view.heads)])
            for layer, pulled in enumerate(one.pulled)
        ]
    )


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
    view = one.trace.view
    losses = [[_said(model, one, {layer: [head]})[0] for head in range(view.heads)] for layer in range(view.layers)]
    return torch.tensor(losses, dtype=torch.float64) - float(one.loss)


# The curves


def _curves(
    model: Model, one: Prompt, scores: dict[str, Grid], kept: list[float], draws: int, generator: Generator
) -> dict[str, list[tuple[float, float]]]:
    """Ranking → (loss, logit difference) at every share kept; the random one is a mean over draws."""
    orders = {name: [grid.flatten().argsort(descending=True, stable=True).tolist()] for name, grid in scores.items()}
    total = one.trace.view.layers * one.trace.view.heads
    orders["random"] = [torch.randperm(total, generator=generator).tolist() for _ in range(draws)]
    return {
        name: [_mean([_kept(model, one, order, share) for order in some]) for share in kept]
        for name, some in orders.items()
    }


def _mean(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(a for a, _ in pairs) / len(pairs), sum(b for _, b in pairs) / len(pairs)


def _kept(model: Model, one: Prompt, order: list[int], share: float) -> tuple[float, float]:
    silenced: Chosen = {}
    for at in sorted(order[round(share * len(order)) :]):
        silenced.setdefault(at // one.trace.view.heads, []).append(at % one.trace.view.heads)
    return _said(model, one, silenced)


@torch.no_grad()
def _said(model: Model, one: Prompt, silenced: Chosen) -> tuple[float, float]:
    """Loss and logit difference with some heads silenced; without a foil the difference is NaN."""
    logits = model.run(one.trace.ids, edit=mean_ablation(one.means, silenced))[-1]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    apart = float("nan") if one.foil is None else float(logits[one.target] - logits[one.foil])
    return float(-logits.log_softmax(-1)[one.target]), apart


def spearman(a: Float[Tensor, " m"], b: Float[Tensor, " m"]) -> float:
    """Rank correlation of two orders without ties."""
    ranks = torch.stack([x.argsort().argsort().double() for x in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def _dataset(model: Model, rows: list[Any], kept: list[float], draws: int, seed: int) -> "xarray.Dataset":
    import numpy as np
    import xarray as xr

    names = list(RANKINGS)
    scored = np.full((len(names), len(rows), model.view.layers, model.view.heads), np.nan)
    for p, (_, scores, _) in enumerate(rows):
        for r, name in enumerate(names[:-1]):
            scored[r, p] = scores[name].cpu().numpy()
    curves = np.array([[row[2][name] for row in rows] for name in names])
    before = np.array([float(one.loss) for one, *_ in rows])
    flat = [[scores[name].flatten().cpu().double() for name in names[:-1]] for _, scores, _ in rows]
    alike = np.mean([[[spearman(a, b) for b in row] for a in row] for row in flat], 0)
    values: dict[str, tuple[tuple[str, ...], Any]] = {
        "importance": (("ranking", "prompt", "layer", "head"), scored),
        "loss": (("ranking", "prompt", "kept"), curves[..., 0]),
        "loss_before": (("prompt",), before),
        "spearman": (("ranked", "other"), alike),
        "lost": (("ranking",), (curves[..., 0] - before[:, None]).mean((1, 2))),
    }
    if not np.isnan(curves[..., 1]).any():
        values["logit_difference"] = (("ranking", "prompt", "kept"), curves[..., 1])
    data = {name: xr.Variable(dims, x, {"definition": DEFINITIONS[name]}) for name, (dims, x) in values.items()}
    coords = {"ranking": names, "ranked": names[:-1], "other": names[:-1], "prompt": range(len(rows)), "kept": kept}
    coords |= {"layer": range(model.view.layers), "head": range(model.view.heads)}
    attributes = {
        "analysis": "faithfulness",
        "rankings": "; ".join(f"{name}: {said}" for name, said in RANKINGS.items()),
        "targets": [one.target for one, *_ in rows],
        "texts": [one.trace.text for one, *_ in rows],
        "draws": draws,
        "seed": seed,
    }
    return xr.Dataset(data, coords, attributes | {name: str(value) for name, value in model.view.facts.items()})


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
