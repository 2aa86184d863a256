"""`rheoscope generate --flow` and `--explain`: a line per token while the model generates, then the answer as a sum."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.files import check_outputs
from rheoscope.flow.generation.answer import attribution_groups, is_head
from rheoscope.flow.generation.generated_token import GeneratedToken
from rheoscope.flow.generation.generation import Generation, generate
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message, Verbatim, join
from rheoscope.messages.numbers import format_fixed, format_percent
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.picture.token_labels import display_token, quoted_token
from rheoscope.report.console import console
from rheoscope.report.json_file import save_json
from rheoscope.report.progress_bars import open_model
from rheoscope.report.terminal import Terminal

if TYPE_CHECKING:
    import xarray

COLUMNS = (
    (Message("token"), 14),
    (Message("p"), 6),
    (Message("since"), 6),
    (Message("prompt"), 7),
    (Message("answer"), 7),
    (Message("read most from"), 40),
    (Message("logit lens"), 1),
)
"""The columns of the lines, each with its width. The last one is as wide as its text."""
N_PROMPT_TOKENS, N_HEADS = 12, 8
"""How many prompt tokens and heads the attribution of the answer lists."""
GROUP_NAMES = {
    "prompt": Message("heads, from the prompt"),
    "answer": Message("heads, from the answer"),
    "embedding": Message("embedding"),
    "mlp": Message("MLPs"),
    "rest": Message("biases and norms"),
}


def show_generation(
    prompt: str,
    model: str | None,
    tokens: int,
    sampling: tuple[float, int | None, float | None, int],
    device: str | None = None,
    explain: bool = False,
    json_file: Path | None = None,
) -> None:
    """Run `rheoscope generate --flow`: print every token with its flow, and with `explain` the attribution of the answer."""
    check_outputs([] if json_file is None else [json_file])
    generation = generate(open_model(model, device, None), prompt, tokens, *sampling)
    output = console()
    output.print(render(prompt_line(generation)), soft_wrap=True)
    output.print(padded_line([render(name) for name, _ in COLUMNS]), soft_wrap=True)
    for token in generation:
        output.print(token_line(token), soft_wrap=True)
    output.print()
    output.print(generation.text.strip("\n"), soft_wrap=True)
    explanation = generation.explain()
    terminal = Terminal(output, [])
    for block in answer_blocks(explanation) if explain else []:
        terminal.print_block(block)
    if json_file is not None:
        terminal.print_line(save_json({"generate": explanation}, json_file))


def prompt_line(generation: Generation) -> Message:
    """The prompt, and what the columns mean."""
    return Message(
        "{n} prompt tokens. Since: the layer from which on the logit lens predicts the token (read at {steps}). "
        "Prompt, answer: what heads carry from each of them to its logit.",
        n=generation.n_prompt,
        steps=", ".join(step.split(".")[0] for step in generation.lens_steps),
    )


def token_line(token: GeneratedToken) -> str:
    """A generated token on one line: its probability, the layer that decides it, its largest sources, and its logit lens."""
    sources = [f"{display_token(source.text)} {format_fixed(source.value, 1, sign=True)}" for source in token.sources]
    heads = [f"{writer.name} {format_fixed(writer.value, 1, sign=True)}" for writer in token.heads[:1]]
    return padded_line(
        [
            display_token(token.text),
            format_percent(token.probability),
            token.decided_at.split(".")[0] or "—",
            format_fixed(token.from_prompt, 1, sign=True),
            format_fixed(token.from_answer, 1, sign=True),
            " · ".join(sources[:2] + heads),
            lens_words(token),
        ]
    )


def lens_words(token: GeneratedToken) -> str:
    """The words of the logit lens from the first step to the last, each once where it repeats."""
    texts = [display_token(prediction.text) for prediction in token.lens]
    return " → ".join(text for index, text in enumerate(texts) if index == 0 or text != texts[index - 1])


def padded_line(cells: Sequence[str]) -> str:
    """The cells in columns. A cell that is too wide moves the others to the right.

    >>> padded_line(["·on", "43 %", "L4", "+1.0", "+0.2", "x", "y"])[:30]
    '·on            43 %   L4     +'
    """
    from rich.cells import cell_len

    widths = [width for _, width in COLUMNS]
    return " ".join(
        cell + " " * max(0, width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)
    ).rstrip()


def answer_blocks(explanation: "xarray.Dataset") -> list[Block]:
    """The attribution of the whole answer: its groups, its largest prompt tokens and its largest heads."""
    total = float((explanation.logit - explanation.mean_logit).sum())
    groups = [
        Message("{group} {value}", group=GROUP_NAMES[name], value=Verbatim(format_fixed(value, 1, sign=True)))
        for name, value in attribution_groups(explanation).items()
    ]
    n = explanation.sizes["token"]
    lines = [
        Message(
            "Together, the logits of {n} tokens are {total:.1f} above the mean of the vocabulary: {groups}.",
            n=n,
            total=total,
            groups=join(" · ", groups),
        ),
        Message(
            "Direct attribution with the scale of the final norm fixed. What an earlier layer moved into a token counts to that token."
        ),
    ]
    return [
        Lines(Message("The whole answer"), lines),
        largest_table(
            Message("Prompt tokens that write the answer"),
            Message("prompt token"),
            [quoted_token(str(text)) for text in explanation.prompt_text.values],
            explanation.prompt_total.values.tolist(),
            [strongest_token(explanation, column) for column in explanation.prompt_attribution.values.T],
            N_PROMPT_TOKENS,
        ),
        head_table(explanation),
    ]


def head_table(explanation: "xarray.Dataset") -> Table:
    """The heads with the largest totals."""
    names = [str(name) for name in explanation.component.values]
    heads = [index for index, name in enumerate(names) if is_head(name)]
    return largest_table(
        Message("Heads that write the answer"),
        Message("head"),
        [names[index] for index in heads],
        explanation.component_total.values[heads].tolist(),
        [strongest_token(explanation, column) for column in explanation.component_attribution.values.T[heads]],
        N_HEADS,
    )


def strongest_token(explanation: "xarray.Dataset", values: Sequence[float]) -> str:
    """The generated token to which a part contributes most, with this contribution."""
    row = max(range(len(values)), key=lambda index: abs(float(values[index])))
    text = quoted_token(str(explanation.token_text.values[row]))
    return Verbatim(f"{text} {format_fixed(float(values[row]), 1, sign=True)}")


def largest_table(
    heading: Message,
    name: Message,
    labels: Sequence[str],
    totals: Sequence[float],
    strongest: Sequence[str],
    n_rows: int,
) -> Table:
    """The parts with the largest totals in size, the largest first."""
    order = sorted(range(len(totals)), key=lambda index: -abs(totals[index]))[:n_rows]
    rows = [
        [Cell(labels[index]), Cell(format_fixed(totals[index], 1, sign=True)), Cell(strongest[index])]
        for index in order
    ]
    header = [
        Cell(name),
        Cell(Message("total"), Message("sum of the contributions to the logits of all generated tokens")),
        Cell(Message("most to")),
    ]
    return Table(heading, header, rows, frozenset({0, 2}))
