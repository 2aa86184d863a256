"""Text about patching: where the difference between two texts is in every layer, and which heads carry it."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_fixed
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.picture.token_labels import display_token, step_names
from rheoscope.space.results import Results
from rheoscope.space.words import OwnReport, ReportSection, Words

if TYPE_CHECKING:
    import xarray

METRIC_SENTENCES = {
    "logit_diff": Message(
        "The logit of {clean} minus that of {corrupt} is {text} after this text and {other} after the other one."
    ),
    "prob": Message("The probability of {clean} is {text} after this text and {other} after the other one."),
    "kl": Message("The prediction after the other text differs from that after this one by KL {other} nats."),
    "loss": Message("The loss of {clean} is {text} nats after this text and {other} after the other one."),
}
MAX_TOKENS = 2
"""Tokens per step in the table of the stream."""


def blocks(results: Results) -> list[Block]:
    """The two predictions, the tokens that carry their difference at every step, and the strongest heads."""
    if not results.has("patch"):
        return []
    dataset = results.datasets["patch"]
    return [
        Lines(
            Message("This text and “{other}”", other=dataset.attrs["other"]),
            [metric_sentence(dataset), through_sentence(dataset)],
        ),
        stream_table(dataset),
        head_table(dataset),
    ]


def metric_sentence(dataset: "xarray.Dataset") -> Message:
    """The metric after both texts."""
    clean, corrupt = (display_token(answer) for answer in str(dataset.attrs["answers"]).split("|"))
    return Message(
        METRIC_SENTENCES[dataset.attrs["metric"]].template,
        clean=clean,
        corrupt=corrupt,
        text=format_fixed(float(dataset.metric_text), 2, True),
        other=format_fixed(float(dataset.metric_other), 2, True),
    )


def through_sentence(dataset: "xarray.Dataset") -> Message:
    """The sum of the heads' effects, and of those through weights and values alone."""
    sums = {name: float(dataset[name].sel(direction="restore").sum()) for name in ("output", "weights", "values")}
    return Message(
        "Patched one at a time, heads restore {output} of the difference in sum: {values} through their values alone (F), "
        "{weights} through their weights alone (M).",
        **{name: format_fixed(total, 2) for name, total in sums.items()},
    )


def stream_table(dataset: "xarray.Dataset") -> Table:
    """One row per layer: the tokens whose points restore most."""
    restored = dataset.stream.sel(direction="restore")
    rows = []
    for name, step, effects in zip(step_names(dataset.step.values), dataset.step.values, restored.values, strict=True):
        if str(step).endswith("resid_mid"):
            continue
        order = np.argsort(-np.abs(np.nan_to_num(effects)), kind="stable")[:MAX_TOKENS]
        tokens = [
            Cell(
                Message(
                    "{token} at {position}", token=display_token(str(dataset.token_text.values[i])), position=int(i)
                )
            )
            for i in order
        ]
        numbers = [Cell(format_fixed(float(effects[i]), 2)) for i in order]
        rows.append([Cell(name), *(cell for pair in zip(tokens, numbers, strict=True) for cell in pair)])
    header = [
        Cell(Message("step")),
        Cell(Message("strongest token")),
        Cell(Message("effect"), str(dataset.stream.attrs["definition"])),
        Cell(Message("second strongest")),
        Cell(Message("effect"), str(dataset.stream.attrs["definition"])),
    ]
    return Table(Message("Where the difference is"), header, rows)


def head_table(dataset: "xarray.Dataset") -> Table:
    """The strongest heads: both directions, weights and values alone, and the token at which they act."""
    columns = [("restore", "output"), ("disrupt", "output"), ("restore", "weights"), ("restore", "values")]
    titles = [Message("restores"), Message("disrupts"), Message("by weights (M)"), Message("by values (F)")]
    header = [
        Cell(Message("head")),
        *(
            Cell(title, str(dataset[name].attrs["definition"]))
            for title, (_, name) in zip(titles, columns, strict=True)
        ),
        Cell(Message("strongest token")),
    ]
    rows = []
    for name in map(str, dataset.strong_head.values):
        layer, head = (int(number) for number in name.removeprefix("L").split(".H"))
        numbers = [
            float(dataset[field].sel(direction=direction, layer=layer, head=head)) for direction, field in columns
        ]
        by_token = np.abs(np.nan_to_num(dataset.head_token.sel(direction="restore", strong_head=name).values))
        token = Message(
            "{token} at {position}",
            token=display_token(str(dataset.token_text.values[by_token.argmax()])),
            position=int(by_token.argmax()),
        )
        rows.append([Cell(name), *(Cell(format_fixed(number, 2)) for number in numbers), Cell(token)])
    return Table(Message("Heads that carry it, share of the difference"), header, rows)


WORDS = Words(
    sections=(ReportSection("patch", 0, blocks),),
    report=OwnReport(
        "patch",
        Message("Patching: {text}"),
        can_describe=lambda results: False,
    ),
)
