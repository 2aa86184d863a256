"""Text about reversed attention: the heads with the largest gradient, and the tokens that they should attend to."""

import math
from typing import TYPE_CHECKING

from rheoscope.messages.message import Message, join, plural
from rheoscope.messages.numbers import format_fixed
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.picture.token_labels import display_token
from rheoscope.space.results import Results
from rheoscope.space.words import OwnReport, ReportSection, Words
from rheoscope.statistics.field_summaries import largest_head, median_of

if TYPE_CHECKING:
    import xarray

    from rheoscope.space.trace import Trace

PATCH_ETA = -0.1
"""The η whose effect is reported: all weights moved by a tenth of R against the gradient."""
MAX_HEADS = 10


def blocks(results: Results) -> list[Block]:
    """The heads with the largest gradient, and a summary in sentences."""
    if not results.has("reversed_attention"):
        return []
    heading = Message("How a gradient step would change attention")
    return [head_table(results), Lines(heading, gradient_sentences(results))]


def strongest_heads(dataset: "xarray.Dataset", n_heads: int = MAX_HEADS) -> list[tuple[int, int]]:
    """Heads by ‖R‖, the largest first."""
    order = dataset.norm.values.ravel().argsort()[::-1][:n_heads]
    return [divmod(int(index), dataset.sizes["head"]) for index in order]


def strongest_pulls(
    dataset: "xarray.Dataset", layer: int, head: int, sign: int, max_tokens: int = 2
) -> list[tuple[int, float]]:
    """Tokens with Σ_i R_ij: those whose scores should rise (sign −1) or fall (sign 1), the strongest first."""
    gradient_sum = dataset.gradient_sum.values[layer, head]
    order = (sign * gradient_sum).argsort()[::-1][:max_tokens]
    return [(int(token), float(gradient_sum[token])) for token in order if sign * gradient_sum[token] > 0]


def head_table(results: Results) -> Table:
    """One row per head: ‖R‖, and the tokens that it should attend to more and less."""
    dataset, trace = results.datasets["reversed_attention"], results.required_trace
    position = int(dataset.attrs["token"])
    rows = []
    for layer, head in strongest_heads(dataset, int(dataset.attrs.get("top", MAX_HEADS))):
        more, less = (_pulls_text(strongest_pulls(dataset, layer, head, sign), trace) for sign in (-1, 1))
        rows.append([*map(Cell, (f"L{layer}.H{head}", f"{float(dataset.norm[layer, head]):.4f}", more, less))])
    definition = str(dataset.gradient_sum.attrs["definition"])
    header = [
        Cell(Message("head")),
        Cell("‖R‖", str(dataset.norm.attrs["definition"])),
        Cell(
            Message("should attend more to"),
            Message("{definition}; negative values, shown without their sign", definition=definition),
        ),
        Cell(Message("should attend less to"), Message("{definition}; positive values", definition=definition)),
    ]
    heading = Message(
        "Heads with the largest gradient of L = −log p({target}) after {token}, token {position}",
        target=_target_text(results),
        token=display_token(trace.tokens[position]),
        position=position,
    )
    return Table(heading, header, rows, frozenset({0, 2, 3}))


def _target_text(results: Results) -> str:
    dataset = results.datasets["reversed_attention"]
    return display_token(results.token_strings([int(dataset.attrs["target"])])[0])


def _pulls_text(token_pulls: list[tuple[int, float]], trace: "Trace") -> str:
    return "  ".join(
        f"{display_token(trace.tokens[token])} {token} ({format_fixed(abs(value), 3)})" for token, value in token_pulls
    )


def gradient_sentences(results: Results) -> list[Message]:
    """The target's probability, the strongest head, the concentration of the gradient, and the effect of a step."""
    dataset = results.datasets["reversed_attention"]
    norm, loss = dataset.norm.values.ravel(), float(dataset.loss)
    lines = [
        Message(
            "The model gives {target} the probability {probability:.3g} ({loss:.3f} nats).",
            target=_target_text(results),
            probability=math.exp(-loss),
            loss=loss,
        ),
        _strongest_head_sentence(results) if norm.any() else Message("The gradient is 0 in every head."),
    ]
    if norm.any() and len(norm) > 1:
        n_top = max(1, len(norm) // 20)
        share = sum(sorted(norm.tolist())[-n_top:]) / max(float(norm.sum()), 1e-30)
        lines.append(
            plural(
                "The strongest of {total} heads has {share:.0f} % of the sum of ‖R‖; an even split would give {even:.0f} %.",
                "The strongest {n} of {total} heads have {share:.0f} % of the sum of ‖R‖; an even split would give {even:.0f} %.",
                n=n_top,
                total=len(norm),
                share=100 * share,
                even=100 * n_top / len(norm),
            )
        )
    return [*lines, _patching_sentence(results)] if results.has("attention_patching") else lines


def _strongest_head_sentence(results: Results) -> Message:
    dataset = results.datasets["reversed_attention"]
    layer, head = strongest_heads(dataset, 1)[0]
    strongest = Message("L{layer}.H{head} has the largest gradient.", layer=layer, head=head)
    rising_tokens = strongest_pulls(dataset, layer, head, -1, 1)
    if not rising_tokens:
        return strongest
    position = rising_tokens[0][0]
    token_text = display_token(results.required_trace.tokens[position])
    advice = Message("It should attend more to {token} (token {position}).", token=token_text, position=position)
    return join(" ", [strongest, advice])


def _patching_sentence(results: Results) -> Message:
    step = results.datasets["attention_patching"].sel(eta=PATCH_ETA)
    return Message(
        "Moving all weights by {eta} R changes the loss to {loss:.3f} (first-order prediction {predicted:.3f}).",
        eta=PATCH_ETA,
        loss=float(step.loss),
        predicted=float(step.predicted_loss),
    )


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """The head with the largest gradient of its scores."""
    name, norm = largest_head(dataset.norm)
    return Message(
        "{name} has the largest gradient of its scores: {norm}, compared with {median} in the median head.",
        name=name,
        norm=format_fixed(norm, 3),
        median=format_fixed(median_of(dataset.norm), 3),
    )


WORDS = Words(
    sentence=main_sentence,
    sections=(ReportSection("reverse", 0, blocks, needs=("attention_patching",)),),
    report=OwnReport(
        "reverse",
        Message("Reversed attention: {text}"),
        next_step=Message("what the backward pass changes in each head"),
        can_describe=lambda results: results.view.predicts_next_token,
    ),
)
