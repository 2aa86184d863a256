"""How faithful rankings of heads are: the loss when only the top heads of each ranking are kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from rheoscope.covers.ablation import MeanOutputs, mean_ablation_by_row, mean_outputs
from rheoscope.covers.reversed_attention.analysis import (
    head_output_gradients,
    loss_gradients,
    reversed_maps_of_layer,
    target_id,
)
from rheoscope.covers.text_batches import included_tokens, max_texts
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field, with_interval
from rheoscope.space.model import Model, as_text_list
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.settings import Bounds, Draws, Seed, TokenId
from rheoscope.space.trace import Trace
from rheoscope.statistics.intervals import bootstrap_t_interval, describe_intervals
from rheoscope.statistics.ranks import spearman

if TYPE_CHECKING:
    import xarray

RANKINGS = {
    "reversed": "‖R‖, the norm of the gradient of the scores",
    "forward": "‖Δ_h‖, the norm of the head's update",
    "attribution": "first-order change of the loss when the head is mean-ablated: Σ_i ⟨∂L/∂o_i, ō − o_i⟩",
    "mediation": "change of the loss when only this head is mean-ablated",
    "random": "random order",
}
DEFAULT_FRACTIONS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
HeadGrid = Float[Tensor, "layer head"]
Outcome = tuple[float, float]
"""−log p of the target, and its logit minus that of the foil."""
TokenPerText = Sequence[str | int] | str | int | None
"""One token per text, as a string or as an id."""


@dataclass(frozen=True, eq=False)
class Prompt:
    """A text with its target and foil, the gradients at the attention outputs, and the mean outputs of the heads."""

    trace: Trace
    target: int
    foil: int | None
    attention_grads: list[Float[Tensor, "n d"]]
    mean_outputs: MeanOutputs


PromptResult = tuple[Prompt, dict[str, HeadGrid], dict[str, list[Outcome]]]
"""A prompt, the scores of every ranking, and the outcomes under every ranking."""


def faithfulness(
    model: Model,
    texts: Any,
    targets: Sequence[str | TokenId] | str | TokenId | None = None,
    foils: Sequence[str | TokenId] | str | TokenId | None = None,
    fractions: Sequence[Annotated[float | int, Bounds(0.0, 1.0)]] = DEFAULT_FRACTIONS,
    draws: Draws = 3,
    seed: Seed = 0,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """The loss of a target token when only the top heads of a ranking are kept and all others are mean-ablated.

    **Question** Which ranking finds the heads that carry the prediction? Does the gradient of the scores rank them better
    than the size of their updates?

    **Formula** The rankings are reversed: ‖R‖, forward: ‖Δ_h‖, attribution: Σ_i ⟨∂L/∂o_i, ō − o_i⟩, mediation: the change
    of the loss when only this head is ablated, and random. Mean ablation replaces the output of a head at every token by
    its mean ō over the tokens of the text.

    **Settings** `texts` is one text or a list. `targets` holds one token per text, to be predicted at its end. By default
    it is the model's most likely token. `foils` holds one alternative token per text. `fractions` are the fractions of
    heads that are kept. `draws` is the number of random orders. Mediation runs every text once per head, so use short
    texts.

    **Returns** (ranking, text, layer, head): `importance`. (ranking, text, fraction): `loss`, and with foils
    `logit_difference`. (text): `loss_before`. (ranking, fraction): `mean_loss`. (score, other_score): `spearman`.
    (ranking): `excess_loss`. (ranking, other_ranking): `excess_loss_difference`. The last four have 95 % intervals
    over texts, which are NaN for fewer than four texts.

    **Laws** With all heads kept, the model is bit-identical. With no heads kept, all rankings give the same loss.
    Attribution is the derivative of the loss along the ablation. No reparametrisation that preserves the logits changes a
    value.

    **Source** Katz and Wolf 2024 (arXiv:2412.17019). Attribution patching: Nanda 2023. Causal mediation: Vig et al. 2020.

    **See also** `reversed_attention` and `attention_patching`. `surgery` changes what heads compute instead of ablating
    them.

    >>> import rheoscope as rs
    >>> result = rs.faithfulness(rs.load(), "The keys to the cabinet are", [" on"], fractions=(0.0, 0.5, 1.0))
    >>> bool((result.loss.sel(fraction=1.0) == result.loss_before).all())
    True
    """
    text_list, kept_fractions = as_text_list(texts), list(map(float, fractions))
    target_tokens, foil_tokens = (
        _token_per_text(name, tokens, text_list) for name, tokens in (("targets", targets), ("foils", foils))
    )
    _check_settings(kept_fractions, draws)
    generator, rows = Generator().manual_seed(seed), list[PromptResult]()
    for text_index, text in enumerate(text_list):
        prompt = _open_prompt(model, text, target_tokens[text_index], foil_tokens[text_index])
        scores = {
            "reversed": reversed_norms(prompt),
            "forward": forward_norms(prompt.trace),
            "attribution": attributions(prompt),
            "mediation": mediations(model, prompt),
        }
        rows.append((prompt, scores, _ranking_curves(model, prompt, scores, kept_fractions, draws, generator)))
        if progress is not None:
            progress(text_index + 1, len(text_list))
    ranking_names = [name for name in RANKINGS if name in rows[0][2]]
    ranked_names = list(rows[0][1])
    coords: dict[str, Any] = {
        "ranking": ranking_names,
        "other_ranking": ranking_names,
        "score": ranked_names,
        "other_score": ranked_names,
    }
    coords |= {"text": range(len(rows)), "fraction": kept_fractions}
    coords |= {"layer": range(model.view.layers), "head": range(model.view.heads)}
    return FAITHFULNESS.label(_values(rows, ranking_names, seed), coords, _attributes(model, rows, draws, seed))


def _open_prompt(model: Model, text: Any, target: str | int | None, foil: str | int | None) -> Prompt:
    trace = model.trace(text, logits=True)
    _, attention_grads, target_token_id, _ = loss_gradients(model, trace, target, -1)
    head_means = mean_outputs(trace, included_tokens(trace))
    return Prompt(trace, target_token_id, None if foil is None else target_id(model, foil), attention_grads, head_means)


# The rankings


@torch.no_grad()
def reversed_norms(prompt: Prompt) -> HeadGrid:
    """‖R‖ of every head, the norm of the gradient of its scores."""
    layers = enumerate(prompt.trace.view.layer_heads)
    layer_norms = [
        [
            R.norm()
            for R in reversed_maps_of_layer(heads, prompt.trace.layer_input(layer), prompt.attention_grads[layer])
        ]
        for layer, heads in layers
    ]
    return torch.stack([torch.stack(norms) for norms in layer_norms])


def forward_norms(trace: Trace) -> HeadGrid:
    """‖Δ_h‖ of every head, the norm of its update."""
    return torch.stack([trace.attention_parts(layer)[0].flatten(1).norm(dim=-1) for layer in range(trace.view.layers)])


def attributions(prompt: Prompt) -> HeadGrid:
    """The first-order change of the loss when each head alone is mean-ablated."""
    layer_attributions = []
    for layer, (heads, mean) in enumerate(zip(prompt.trace.view.layer_heads, prompt.mean_outputs, strict=True)):
        x = prompt.trace.layer_input(layer)
        output_grads = head_output_gradients(heads, x, prompt.attention_grads[layer])
        with torch.no_grad():
            layer_attributions.append((output_grads * (mean[:, None] - heads.outputs(x))).sum((-2, -1)))
    return torch.stack(layer_attributions)


def mediations(model: Model, prompt: Prompt) -> HeadGrid:
    """The change of the loss when each head alone is mean-ablated."""
    n_layers, n_heads = prompt.trace.view.layers, prompt.trace.view.heads
    is_silent = torch.eye(n_layers * n_heads, dtype=torch.bool).unflatten(-1, (n_layers, n_heads))
    losses = [loss for loss, _ in outcomes_without(model, prompt, is_silent)]
    return torch.tensor(losses, dtype=torch.float64).unflatten(0, (n_layers, n_heads)) - clean_outcome(prompt)[0]


# The curves


def _ranking_curves(
    model: Model,
    prompt: Prompt,
    scores: dict[str, HeadGrid],
    kept_fractions: list[float],
    draws: int,
    generator: Generator,
) -> dict[str, list[Outcome]]:
    """Ranking → (loss, logit difference) at every kept fraction. The random ranking is a mean over draws."""
    orders = {name: [grid.flatten().argsort(descending=True, stable=True).cpu()] for name, grid in scores.items()}
    n_layers, n_heads = prompt.trace.view.layers, prompt.trace.view.heads
    if draws:
        orders["random"] = [torch.randperm(n_layers * n_heads, generator=generator) for _ in range(draws)]
    runs = [
        (name, fraction, order)
        for name, order_draws in orders.items()
        for fraction in kept_fractions
        for order in order_draws
    ]
    is_silent = torch.ones(len(runs), n_layers * n_heads, dtype=torch.bool)
    for row, (_, fraction, order) in zip(is_silent, runs, strict=True):
        row[order[: round(fraction * len(order))]] = False
    outcomes = iter(outcomes_without(model, prompt, is_silent.unflatten(-1, (n_layers, n_heads))))
    return {
        name: [_mean_outcome([next(outcomes) for _ in order_draws]) for _ in kept_fractions]
        for name, order_draws in orders.items()
    }


def _mean_outcome(outcomes: list[Outcome]) -> Outcome:
    return sum(a for a, _ in outcomes) / len(outcomes), sum(b for _, b in outcomes) / len(outcomes)


@torch.no_grad()
def outcomes_without(model: Model, prompt: Prompt, is_silent: Bool[Tensor, "rows layer head"]) -> list[Outcome]:
    """Loss and logit difference when the silent heads of each row are mean-ablated, computed in batches.

    A row without silent heads is the unedited model, which is not run again.
    """
    outcomes = [clean_outcome(prompt)] * len(is_silent)
    edited_rows, batch_size = is_silent.flatten(1).any(-1).nonzero()[:, 0], max_texts(model, len(prompt.trace))
    for start in range(0, len(edited_rows), batch_size):
        rows = edited_rows[start : start + batch_size]
        ids = prompt.trace.ids.expand(len(rows), -1)
        logits = model.run_batch(ids, mean_ablation_by_row(prompt.mean_outputs, is_silent[rows]))
        for row, outcome in zip(rows.tolist(), _outcomes(prompt, logits[:, -1]), strict=True):
            outcomes[row] = outcome
    return outcomes


def clean_outcome(prompt: Prompt) -> Outcome:
    """The outcome of the unedited model."""
    assert prompt.trace.logits is not None
    return _outcomes(prompt, prompt.trace.logits[-1:])[0]


def _outcomes(prompt: Prompt, logits: Float[Tensor, "rows vocabulary"]) -> list[Outcome]:
    """The loss of the target at the end of the text, and its logit minus the foil's; NaN without a foil."""
    logits = at_least_float32(logits)
    losses = (-logits.log_softmax(-1)[:, prompt.target]).tolist()
    differences = (
        [float("nan")] * len(logits)
        if prompt.foil is None
        else (logits[:, prompt.target] - logits[:, prompt.foil]).tolist()
    )
    return list(zip(losses, differences, strict=True))


def _values(rows: list[PromptResult], ranking_names: list[str], seed: int) -> dict[str, Tensor]:
    importance = torch.stack(
        [torch.stack([grid.cpu().double() for grid in scores.values()]) for _, scores, _ in rows], 1
    )
    curves = torch.tensor([[row[2][name] for row in rows] for name in ranking_names], dtype=torch.float64)
    loss_before = torch.tensor([clean_outcome(prompt)[0] for prompt, *_ in rows], dtype=torch.float64)
    nan_importance = torch.full_like(importance[: len(ranking_names) - len(importance)], torch.nan)
    values = kernel(importance, curves[..., 0], loss_before, seed)
    values |= {
        "importance": torch.cat([importance, nan_importance]),
        "loss": curves[..., 0],
        "loss_before": loss_before,
    }
    return values | ({} if bool(curves[..., 1].isnan().any()) else {"logit_difference": curves[..., 1]})


def kernel(
    importance: Float[Tensor, "score text layer head"],
    loss: Float[Tensor, "ranking text fraction"],
    loss_before: Float[Tensor, " text"],
    seed: int,
) -> dict[str, Tensor]:
    """Means over texts with their intervals: losses, excess losses and rank correlations of the rankings."""
    flat_importance, loss_increase = importance.flatten(2), (loss - loss_before[:, None]).mean(-1)
    text_values = {
        "mean_loss": loss.mT,
        "spearman": spearman(flat_importance[:, None], flat_importance[None]),
        "excess_loss": loss_increase,
        "excess_loss_difference": loss_increase[:, None] - loss_increase,
    }
    values: dict[str, Tensor] = {}
    for name, x in text_values.items():
        low, high = bootstrap_t_interval(x, seed=seed)
        values |= {name: x.mean(-1), f"{name}_low": low, f"{name}_high": high}
    return values


def _attributes(model: Model, rows: list[PromptResult], draws: int, seed: int) -> dict[str, Any]:
    return {
        "rankings": "; ".join(f"{name}: {definition}" for name, definition in RANKINGS.items()),
        "targets": [prompt.target for prompt, *_ in rows],
        "texts": [prompt.trace.text for prompt, *_ in rows],
        "draws": draws,
        "seed": seed,
        "intervals": describe_intervals(Message("texts"), len(rows)),
    } | {name: str(value) for name, value in model.view.facts.items()}


def _token_per_text(name: str, token_setting: TokenPerText, texts: list[Any]) -> Sequence[str | int | None]:
    """One token for every text. A single text may have it without a list."""
    tokens = (
        [token_setting]
        if isinstance(token_setting, str | int)
        else [None] * len(texts)
        if token_setting is None
        else token_setting
    )
    if len(tokens) != len(texts):
        raise RheoscopeError(
            Message(
                "{name} must have one token per text, got {received} for {expected}",
                name=name,
                received=len(tokens),
                expected=len(texts),
            ),
            Advice(f'{name}=[" on"] * {len(texts)}', f"--{name} ' on'"),
        )
    return tokens


def _check_settings(kept_fractions: list[float], draws: int) -> None:
    if not kept_fractions or not all(0 <= fraction <= 1 for fraction in kept_fractions):
        raise RheoscopeError(
            Message("fractions must hold numbers from 0 to 1, got {value}", value=str(kept_fractions)),
            use(fractions=(0, 0.5, 1)),
        )
    if draws < 0:
        raise RheoscopeError(Message("draws must be at least 0, got {value}", value=draws), use(draws=3))


TEXT_DIMS = ("ranking", "text", "fraction")
MEAN_LOSS = Field(("ranking", "fraction"), "loss when the given fraction of heads is kept, mean over texts", "nats")
SPEARMAN = Field(("score", "other_score"), "Spearman correlation of two rankings over all heads, mean over texts")
EXCESS_LOSS = Field(
    ("ranking",),
    "loss minus the original loss, mean over fractions and texts; lower is more faithful",
    "nats",
)
EXCESS_LOSS_DIFFERENCE = Field(
    ("ranking", "other_ranking"),
    "excess_loss of the ranking minus that of the other ranking; above 0, the other is more faithful",
    "nats",
)
FAITHFULNESS = Analysis(
    name="faithfulness",
    question="Which ranking finds the heads that carry the prediction?",
    ask=faithfulness,
    needs="model",
    fields={
        "importance": Field(
            ("ranking", "text", "layer", "head"),
            "score by which the ranking orders the heads; NaN for the random ranking",
        ),
        "loss": Field(
            TEXT_DIMS,
            "−log p of the target when the given fraction of heads is kept and all others are mean-ablated",
            "nats",
        ),
        "logit_difference": Field(TEXT_DIMS, "logit of the target minus that of the foil, with the same heads kept"),
        "loss_before": Field(("text",), "−log p of the target in the unedited model", "nats"),
    }
    | with_interval("mean_loss", MEAN_LOSS)
    | with_interval("spearman", SPEARMAN)
    | with_interval("excess_loss", EXCESS_LOSS)
    | with_interval("excess_loss_difference", EXCESS_LOSS_DIFFERENCE),
)
