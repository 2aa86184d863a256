"""How the loss wants attention to change: the heads it pulls at most, and the tokens they should look at."""

import math
from typing import TYPE_CHECKING

from rheoscope.messages.numbers import format_fixed
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.picture.token_labels import display_token
from rheoscope.space.results import Results

if TYPE_CHECKING:
    import xarray

PATCH_ETA = -0.1
"""The η whose effect is told: weights moved a tenth of R against it."""
MAX_HEADS = 10


def blocks(results: Results) -> list[Block]:
    """The heads that are pulled at most, and what the pull says."""
    if "reversed_attention" not in results.datasets:
        return []
    return [head_table(results), Lines("What the pull says", pull_sentences(results))]


def strongest_heads(dataset: "xarray.Dataset", n_heads: int = MAX_HEADS) -> list[tuple[int, int]]:
    """Heads by ‖R‖, the largest first."""
    order = dataset.norm.values.ravel().argsort()[::-1][:n_heads]
    return [divmod(int(index), dataset.sizes["head"]) for index in order]


def strongest_pulls(
    dataset: "xarray.Dataset", layer: int, head: int, sign: int, max_tokens: int = 2
) -> list[tuple[int, float]]:
    """Tokens with Σ_i R_ij: those whose scores should rise (sign −1) or fall (sign 1), the strongest first."""
    pull = dataset.gradient_sum.values[layer, head]
    order = (sign * pull).argsort()[::-1][:max_tokens]
    return [(int(token), float(pull[token])) for token in order if sign * pull[token] > 0]


def head_table(results: Results) -> Table:
    """A row a head: ‖R‖, and the tokens that it should look at more and less."""
    dataset, tokens = results.datasets["reversed_attention"], results.required_trace.tokens
    target_text, token_index = (
        display_token(results.token_strings([int(dataset.attrs["target"])])[0]),
        int(dataset.attrs["token"]),
    )
    rows = []
    for layer, head in strongest_heads(dataset, int(dataset.attrs.get("top", MAX_HEADS))):
        more, less = (_pulls_text(strongest_pulls(dataset, layer, head, sign), tokens) for sign in (-1, 1))
        rows.append([*map(Cell, (f"L{layer}.H{head}", f"{float(dataset.norm[layer, head]):.4f}", more, less))])
    header = [
        Cell("head"),
        Cell("‖R‖", str(dataset.norm.attrs["definition"])),
        Cell(
            "should look more at",
            f"{dataset.gradient_sum.attrs['definition']}; where it is below 0, told without its sign",
        ),
        Cell("should look less at", f"{dataset.gradient_sum.attrs['definition']}; where it is above 0"),
    ]
    heading = f"Heads that L = −log p({target_text}) after {display_token(tokens[token_index])}, token {token_index}, pulls at most"
    return Table(heading, header, rows, frozenset({0, 2, 3}))


def _pulls_text(token_pulls: list[tuple[int, float]], tokens: list[str]) -> str:
    return "  ".join(
        f"{display_token(tokens[token])} {token} ({format_fixed(abs(value), 3)})" for token, value in token_pulls
    )


def pull_sentences(results: Results) -> list[str]:
    """How likely the target is, which head, how gathered the pull is, and whether following it helps."""
    dataset, tokens = results.datasets["reversed_attention"], results.required_trace.tokens
    target_text, norm, loss = (
        display_token(results.token_strings([int(dataset.attrs["target"])])[0]),
        dataset.norm.values.ravel(),
        float(dataset.loss),
    )
    n_top = max(1, len(norm) // 20)
    top_share = sum(sorted(norm.tolist())[-n_top:]) / max(float(norm.sum()), 1e-30)
    layer, head = strongest_heads(dataset, 1)[0]
    rising_tokens = strongest_pulls(dataset, layer, head, -1, 1)
    look_note = (
        f", which should look more at {display_token(tokens[rising_tokens[0][0]])} (token {rising_tokens[0][0]})"
        if rising_tokens
        else ""
    )
    lines = [
        f"The model gives {target_text} the probability {math.exp(-loss):.3g} ({loss:.3f} nats).",
        f"The loss pulls hardest at L{layer}.H{head}{look_note}." if norm.any() else "The loss pulls at no head.",
    ]
    if norm.any() and len(norm) > 1:
        subject = (
            f"The strongest of {len(norm)} heads has"
            if n_top == 1
            else f"The strongest {n_top} of {len(norm)} heads have"
        )
        lines.append(f"{subject} {top_share:.0%} of the pull; spread evenly it would be {n_top / len(norm):.0%}.")
    if "attention_patching" not in results.datasets:
        return lines
    patching = results.datasets["attention_patching"]
    loss_after, loss_predicted = (
        float(patching.loss.sel(eta=PATCH_ETA)),
        float(patching.predicted_loss.sel(eta=PATCH_ETA)),
    )
    return [
        *lines,
        f"All weights moved by {PATCH_ETA} R: the loss becomes {loss_after:.3f} (to first order {loss_predicted:.3f}).",
    ]
