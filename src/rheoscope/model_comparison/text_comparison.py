"""One text in two models: every number that a comparison averages over texts, and what it lists per token."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.model_comparison.flow_divergence import (
    MIN_TOKENS,
    common_positions,
    shape_change,
    step_ranks,
    token_divergence,
)
from rheoscope.model_comparison.head_changes import head_changes, mlp_changes
from rheoscope.model_comparison.matching import Similarities, similarities
from rheoscope.model_comparison.prediction_changes import likeliest_tokens, prediction_changes
from rheoscope.model_comparison.shared_parts import SharedParts, vocabulary_reason
from rheoscope.space.trace import Trace


@dataclass(frozen=True, eq=False)
class TextComparison:
    """`means` are the numbers that are averaged over texts, `of_tokens` those of single tokens, `tops` the likeliest tokens."""

    tokens: list[str]
    text: str
    means: dict[str, Tensor]
    of_tokens: dict[str, Tensor]
    tops: dict[str, Tensor]
    similarities: Similarities | None
    vocabulary_reason: Message | None
    steps: list[str]


def compare_text(first: Trace, second: Trace, shared: SharedParts, top: int, max_tokens: int) -> TextComparison:
    """Compare the Traces of one text, which have the same tokens."""
    means: dict[str, Tensor] = {}
    of_tokens: dict[str, Tensor] = {}
    positions = common_positions(first, second, max_tokens)
    has_distances = len(positions) >= MIN_TOKENS
    if shared.same_heads:
        means |= head_changes(first, second)
        if len(first.view.mlps) == len(second.view.mlps) == first.view.layers:
            means["mlp"] = mlp_changes(first, second)
        of_tokens["token_divergence"] = token_divergence(first, second)
        means["divergence"] = of_tokens["token_divergence"].mean(-1)
        if has_distances:
            means["shape_change"] = shape_change(step_ranks(first, positions), step_ranks(second, positions))
    is_matched = has_distances and not shared.same_heads
    reason, tops = vocabulary_reason(first, second), dict[str, Tensor]()
    if reason is None:
        prediction_means, of_tokens["token_kl"] = _predictions(first, second)
        means |= prediction_means
        tops = _tops(first, second, top)
    return TextComparison(
        first.tokens,
        first.text or "".join(first.tokens),
        means,
        of_tokens,
        tops,
        similarities(first, second, positions) if is_matched else None,
        reason,
        [str(step) for step in first.steps],
    )


def _predictions(first: Trace, second: Trace) -> tuple[dict[str, Tensor], Tensor]:
    """The means over tokens, and the KL divergence at every token."""
    changes = prediction_changes(first, second)
    means = {"kl": changes.kl.mean(), "same_token": (changes.first_tokens == changes.second_tokens).double().mean()}
    if first.view.predicts_next_token and second.view.predicts_next_token and len(first) > 1:
        losses = changes.first_losses.mean(), changes.second_losses.mean()
        means |= {
            "loss_first": losses[0],
            "loss_second": losses[1],
            "loss_difference": (changes.second_losses - changes.first_losses).mean(),
        }
    return means, changes.kl


def _tops(first: Trace, second: Trace, top: int) -> dict[str, Tensor]:
    n_ids = min(len(first.view.embed), len(second.view.embed))
    values = {}
    for name, trace in (("first", first), ("second", second)):
        values[f"top_tokens_{name}"], values[f"top_probabilities_{name}"] = likeliest_tokens(trace, n_ids, top)
    return values


def stack_texts(comparisons: list[TextComparison]) -> dict[str, Tensor]:
    """The numbers of all texts along a last axis. A number that some texts lack is left out."""
    names = [name for name in comparisons[0].means if all(name in text.means for text in comparisons)]
    return {name: torch.stack([text.means[name].double() for text in comparisons], -1) for name in names}
