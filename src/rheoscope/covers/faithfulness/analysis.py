"""Which ranking of heads is right? Keep the first of them, silence the others, and look at what the model still says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from rheoscope.covers.ablation import Means, mean_ablation_by_row, mean_outputs
from rheoscope.covers.reversed_attention.analysis import at_outputs, backward, maps, target_id
from rheoscope.covers.text_batches import kept_tokens, most_texts
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field, with_interval
from rheoscope.space.model import Model, as_list
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.trace import Trace
from rheoscope.statistics.nulls import RESAMPLES, bootstrap
from rheoscope.statistics.ranks import spearman

if TYPE_CHECKING:
    import xarray

RANKINGS = {
    "reversed": "‖R‖, the gradient of the scores",
    "forward": "‖Δ_h‖, what the head takes from the tokens and adds",
    "attribution": "first-order change of the loss when the head gives its mean: Σ_i ⟨∂L/∂o_i, ō − o_i⟩",
    "mediation": "change of the loss when the head alone gives its mean",
    "random": "any order",
}
SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
Grid = Float[Tensor, "layer head"]
Outcome = tuple[float, float]
"""−log p of the target, and its logit less the foil's."""
Tokens = Sequence[str | int] | str | int | None
"""A token a text, as text or as an id."""


@dataclass(frozen=True, eq=False)
class Prompt:
    """A text, what shall be said at its end and instead of what, and what heads give it on average."""

    trace: Trace
    target: int
    foil: int | None
    pulled: list[Float[Tensor, "n d"]]
    means: Means


Row = tuple[Prompt, dict[str, Grid], dict[str, list[Outcome]]]
"""Of one text: what it is, the scores of every ranking, and what is left under every ranking."""


def faithfulness(
    model: Model,
    texts: Any,
    targets: Tokens = None,
    foils: Tokens = None,
    shares: Sequence[float | int] = SHARES,
    draws: int = 3,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """Rankings of heads by what they are said to matter, and what is left of the answer when only the first are kept.

    **Answers** "do the heads with a large gradient of the scores carry the answer, more than those that merely write much?"

    **Formula** reversed: ‖R‖; forward: ‖Δ_h‖; attribution (patching): Σ_i ⟨∂L/∂o_i, ō − o_i⟩; mediation: the change of the loss
    when the head alone is ablated; random. To ablate is to give every token the mean ō of the head's output over the tokens of the text.

    **Shapes** `texts`: one or a list; `targets`: a token each, to be said at its end (default: what the model finds likeliest there);
    `foils`: tokens to be said instead; `shares`: how many of the heads are kept, 0 to 1; `draws` random orders, 0 for none.

    **Gives** (ranking, text, layer, head): `importance`; (ranking, text, share): `loss` and, with `foils`, `logit_difference`; (text):
    `loss_before`; (ranking, share): `curve`; (ranked, other): `spearman`; (ranking): `lost`; (ranking, rival): `lost_more`, these four with
    bootstrap intervals over texts (`lost_low`, `lost_high`, …; NaN for fewer than five).

    **Laws** all heads kept is the model itself, bit for bit; none kept is the same for every ranking; attribution is the derivative of
    the loss along the ablation; no gauge moves any number.

    **Cost** mediation runs the text once a head, side by side: prompts, not books.

    **Source** Katz and Wolf 2024 (arXiv:2412.17019); attribution patching: Nanda 2023; causal mediation: Vig et al. 2020.

    **Siblings** `reversed_attention`, `attention_patching`; `surgery` changes what heads compute instead of silencing them.

    >>> import rheoscope as rs
    >>> found = rs.faithfulness(rs.load(), "The keys to the cabinet are", [" on"], shares=(0.0, 0.5, 1.0))
    >>> bool((found.loss.sel(share=1.0) == found.loss_before).all())
    True
    """
    asked, parts = as_list(texts), list(map(float, shares))
    wanted, instead = (_one_each(name, given, asked) for name, given in (("targets", targets), ("foils", foils)))
    _check(parts, draws)
    generator, rows = Generator().manual_seed(seed), list[Row]()
    for at, text in enumerate(asked):
        one = _opened(model, text, wanted[at], instead[at])
        scores = {
            "reversed": reversed_norms(one),
            "forward": forward_norms(one.trace),
            "attribution": attributions(one),
            "mediation": mediations(model, one),
        }
        rows.append((one, scores, _curves(model, one, scores, parts, draws, generator)))
        if progress is not None:
            progress(at + 1, len(asked))
    names = [name for name in RANKINGS if name in rows[0][2]]
    ranked = list(rows[0][1])
    coords: dict[str, Any] = {"ranking": names, "rival": names, "ranked": ranked, "other": ranked}
    coords |= {"text": range(len(rows)), "share": parts}
    coords |= {"layer": range(model.view.layers), "head": range(model.view.heads)}
    return FAITHFULNESS.answer(_values(rows, names, seed), coords, _attributes(model, rows, draws, seed))


def _opened(model: Model, text: Any, target: str | int | None, foil: str | int | None) -> Prompt:
    trace = model.trace(text, logits=True)
    _, pulled, wanted, _ = backward(model, trace, target, -1)
    means = mean_outputs(trace, kept_tokens(trace))
    return Prompt(trace, wanted, None if foil is None else target_id(model, foil), pulled, means)


# The rankings


@torch.no_grad()
def reversed_norms(one: Prompt) -> Grid:
    layers = enumerate(one.trace.view.blocks)
    found = [[R.norm() for R in maps(heads, one.trace.read_by(at), one.pulled[at])] for at, heads in layers]
    return torch.stack([torch.stack(norms) for norms in found])


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
    losses = [loss for loss, _ in outcomes_without(model, one, alone)]
    return torch.tensor(losses, dtype=torch.float64).unflatten(0, (layers, heads)) - as_it_is(one)[0]


# The curves


def _curves(
    model: Model, one: Prompt, scores: dict[str, Grid], shares: list[float], draws: int, generator: Generator
) -> dict[str, list[Outcome]]:
    """Ranking → (loss, logit difference) at every share kept; the random one, if drawn, is a mean over draws."""
    orders = {name: [grid.flatten().argsort(descending=True, stable=True).cpu()] for name, grid in scores.items()}
    layers, heads = one.trace.view.layers, one.trace.view.heads
    if draws:
        orders["random"] = [torch.randperm(layers * heads, generator=generator) for _ in range(draws)]
    asked = [(name, share, order) for name, some in orders.items() for share in shares for order in some]
    silent = torch.ones(len(asked), layers * heads, dtype=torch.bool)
    for row, (_, share, order) in zip(silent, asked, strict=True):
        row[order[: round(share * len(order))]] = False
    found = iter(outcomes_without(model, one, silent.unflatten(-1, (layers, heads))))
    return {name: [_mean([next(found) for _ in some]) for _ in shares] for name, some in orders.items()}


def _mean(pairs: list[Outcome]) -> Outcome:
    return sum(a for a, _ in pairs) / len(pairs), sum(b for _, b in pairs) / len(pairs)


@torch.no_grad()
def outcomes_without(model: Model, one: Prompt, silent: Bool[Tensor, "rows layer head"]) -> list[Outcome]:
    """Loss and logit difference with the silent heads of each row at their mean: copies of the text, side by side.

    Where no head is silent the model is as it is, and is not run again.
    """
    found = [as_it_is(one)] * len(silent)
    changed, most = silent.flatten(1).any(-1).nonzero()[:, 0], most_texts(model, len(one.trace))
    for first in range(0, len(changed), most):
        rows = changed[first : first + most]
        ids = one.trace.ids.expand(len(rows), -1)
        logits = model.run_batch(ids, mean_ablation_by_row(one.means, silent[rows]))
        for row, outcome in zip(rows.tolist(), _outcomes(one, logits[:, -1]), strict=True):
            found[row] = outcome
    return found


def as_it_is(one: Prompt) -> Outcome:
    """What the model itself says."""
    assert one.trace.logits is not None
    return _outcomes(one, one.trace.logits[-1:])[0]


def _outcomes(one: Prompt, last: Float[Tensor, "rows vocabulary"]) -> list[Outcome]:
    """Loss of the target at the end, and its logit less the foil's; without a foil the difference is NaN."""
    last = exact(last)
    losses = (-last.log_softmax(-1)[:, one.target]).tolist()
    difference = [float("nan")] * len(last) if one.foil is None else (last[:, one.target] - last[:, one.foil]).tolist()
    return list(zip(losses, difference, strict=True))


def _values(rows: list[Row], names: list[str], seed: int) -> dict[str, Tensor]:
    scored = torch.stack([torch.stack([grid.cpu().double() for grid in scores.values()]) for _, scores, _ in rows], 1)
    curves = torch.tensor([[row[2][name] for row in rows] for name in names], dtype=torch.float64)
    before = torch.tensor([as_it_is(one)[0] for one, *_ in rows], dtype=torch.float64)
    unordered = torch.full_like(scored[: len(names) - len(scored)], torch.nan)
    found = kernel(scored, curves[..., 0], before, seed)
    found |= {"importance": torch.cat([scored, unordered]), "loss": curves[..., 0], "loss_before": before}
    return found | ({} if bool(curves[..., 1].isnan().any()) else {"logit_difference": curves[..., 1]})


def kernel(
    scored: Float[Tensor, "ranked text layer head"],
    loss: Float[Tensor, "ranking text share"],
    before: Float[Tensor, " text"],
    seed: int,
) -> dict[str, Tensor]:
    """Means over texts, with their intervals, of the curves, of what is lost, and of how alike the rankings are."""
    flat, lost = scored.flatten(2), (loss - before[:, None]).mean(-1)
    over_texts = {
        "curve": loss.mT,
        "spearman": spearman(flat[:, None], flat[None]),
        "lost": lost,
        "lost_more": lost[:, None] - lost,
    }
    values: dict[str, Tensor] = {}
    for name, x in over_texts.items():
        low, high = bootstrap(x, [1] * len(before), Generator().manual_seed(seed))
        values |= {name: x.mean(-1), f"{name}_low": low, f"{name}_high": high}
    return values


def _attributes(model: Model, rows: list[Row], draws: int, seed: int) -> dict[str, Any]:
    return {
        "rankings": "; ".join(f"{name}: {orders_by}" for name, orders_by in RANKINGS.items()),
        "targets": [one.target for one, *_ in rows],
        "texts": [one.trace.text for one, *_ in rows],
        "draws": draws,
        "seed": seed,
        "bootstrap": f"{RESAMPLES} draws of texts",
    } | {name: str(value) for name, value in model.view.facts.items()}


def _one_each(name: str, given: Tokens, texts: list[Any]) -> Sequence[str | int | None]:
    """A token for every text; one text may have it without a list."""
    tokens = [given] if isinstance(given, str | int) else [None] * len(texts) if given is None else given
    if len(tokens) != len(texts):
        raise RheoscopeError(
            f"every text has one of the {name}, got {len(tokens)} for {len(texts)}; type {name}=[…] of that length"
        )
    return tokens


def _check(shares: list[float], draws: int) -> None:
    if draws < 0 or not shares or not all(0 <= share <= 1 for share in shares):
        raise RheoscopeError(
            f"shares of heads lie in 0 to 1 and random orders are drawn 0 times or more, got shares={shares}, draws={draws}; "
            "type shares=(0, 0.5, 1), draws=3"
        )


OF_TEXT = ("ranking", "text", "share")
CURVE = Field(("ranking", "share"), "the loss when the given share of heads is kept, mean over texts", "nats")
SPEARMAN = Field(("ranked", "other"), "rank correlation of two rankings over all heads, mean over texts")
LOST = Field(
    ("ranking",),
    "mean over shares and texts of the loss less that of the model as it is: lower is more faithful",
    "nats",
)
LOST_MORE = Field(
    ("ranking", "rival"),
    "what the ranking loses less what the rival does, over the same texts: above 0 the rival is more faithful",
    "nats",
)
FAITHFULNESS = Analysis(
    name="faithfulness",
    question="Which ranking of heads finds those that carry what the model says?",
    ask=faithfulness,
    needs="model",
    fields={
        "importance": Field(
            ("ranking", "text", "layer", "head"),
            "what the ranking orders heads by, largest first; NaN for the random one",
        ),
        "loss": Field(
            OF_TEXT, "−log p of the target when the given share of heads is kept and every other gives its mean", "nats"
        ),
        "logit_difference": Field(OF_TEXT, "logit of the target less that of the foil under the same"),
        "loss_before": Field(("text",), "−log p of the target in the model as it is", "nats"),
    }
    | with_interval("curve", CURVE)
    | with_interval("spearman", SPEARMAN)
    | with_interval("lost", LOST)
    | with_interval("lost_more", LOST_MORE),
)
