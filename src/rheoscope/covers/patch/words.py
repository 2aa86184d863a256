"""Text about patching: where the difference between two texts is in every layer, and which heads carry it."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.covers.patch.pairs import REST
from rheoscope.messages.message import Message, Verbatim
from rheoscope.messages.numbers import format_fixed, format_percent
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.picture.token_labels import display_token, step_names
from rheoscope.space.results import Results
from rheoscope.space.words import OwnReport, ReportSection, Words
from rheoscope.statistics.field_summaries import largest_head

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
PAIRS_SENTENCES = {
    "logit_diff": Message(
        "Over {n} pairs, the first answer's logit minus the second's is {text} after the text and {other} after the other one."
    ),
    "prob": Message(
        "Over {n} pairs, the probability of the text's answer is {text} after the text and {other} after the other one."
    ),
    "kl": Message(
        "Over {n} pairs, the prediction after the other text differs from that after the text by KL {other} nats."
    ),
    "loss": Message(
        "Over {n} pairs, the loss of the text's answer is {text} nats after the text and {other} after the other one."
    ),
}
MAX_TOKENS = 2
"""Tokens per step in the table of the stream."""
MAX_HEADS = 12
"""Heads in the table of heads. The page has a map of all of them."""


def blocks(results: Results) -> list[Block]:
    """The two predictions, the tokens that carry their difference at every step, and the strongest heads."""
    if not results.has("patch"):
        return []
    dataset = results.datasets["patch"]
    heading = (
        Message("{n} pairs of texts", n=dataset.attrs["pairs"])
        if is_of_pairs(dataset)
        else Message("This text and “{other}”", other=dataset.attrs["other"])
    )
    return [
        Lines(heading, [metric_sentence(dataset), through_sentence(dataset), *interval_sentences(dataset)]),
        stream_table(dataset),
        head_table(dataset),
    ]


def is_of_pairs(dataset: "xarray.Dataset") -> bool:
    """Whether the effects are means over several pairs."""
    return "pairs" in dataset.attrs


def metric_sentence(dataset: "xarray.Dataset") -> Message:
    """The metric after both texts."""
    values = {
        "text": format_fixed(float(dataset.metric_text), 2, True),
        "other": format_fixed(float(dataset.metric_other), 2, True),
    }
    if is_of_pairs(dataset):
        return Message(PAIRS_SENTENCES[dataset.attrs["metric"]].template, n=dataset.attrs["pairs"], **values)
    clean, corrupt = (display_token(answer) for answer in str(dataset.attrs["answers"]).split("|"))
    return Message(METRIC_SENTENCES[dataset.attrs["metric"]].template, clean=clean, corrupt=corrupt, **values)


def interval_sentences(dataset: "xarray.Dataset") -> list[Message]:
    """What the brackets behind effects are, or why there are none."""
    if not is_of_pairs(dataset):
        return []
    return [Message("Brackets hold 95 % intervals over pairs ({intervals}).", intervals=dataset.attrs["intervals"])]


def effect_text(dataset: "xarray.Dataset", name: str, **place: object) -> str:
    """An effect, with its interval where there is one."""
    values = [float(dataset[field].sel(place)) for field in (name, f"{name}_low", f"{name}_high") if field in dataset]
    if len(values) == 1 or not np.isfinite(values).all():
        return format_fixed(values[0], 2)
    effect, low, high = (format_fixed(value, 2) for value in values)
    return Verbatim(f"{effect} [{low}, {high}]")


def through_sentence(dataset: "xarray.Dataset") -> Message:
    """The sum of the heads' effects, and of those through weights and values alone."""
    sums = {name: float(dataset[name].sel(direction="restore").sum()) for name in ("output", "weights", "values")}
    return Message(
        "Patched one at a time, heads restore {output} of the difference in sum: {values} through their values alone (F), "
        "{weights} through their weights alone (M).",
        **{name: format_fixed(total, 2) for name, total in sums.items()},
    )


def token_place(dataset: "xarray.Dataset", index: int) -> str:
    """A token and its position, or the name of a span."""
    names = list(map(str, dataset.token_text.values))
    if names[-1] == REST:
        return Verbatim(names[index])
    return Message("{token} at {position}", token=display_token(names[index]), position=index)


def stream_table(dataset: "xarray.Dataset") -> Table:
    """One row per layer: the tokens whose points restore most."""
    restored = dataset.stream.sel(direction="restore")
    rows = []
    for name, step, effects in zip(step_names(dataset.step.values), dataset.step.values, restored.values, strict=True):
        if str(step).endswith("resid_mid"):
            continue
        cells = [Cell(name)]
        for token in np.argsort(-np.abs(np.nan_to_num(effects)), kind="stable")[:MAX_TOKENS].tolist():
            effect = effect_text(dataset, "stream", direction="restore", step=step, token=token)
            cells += [Cell(token_place(dataset, token)), Cell(effect)]
        rows.append(cells)
    definition = str(dataset.stream.attrs["definition"])
    header = [
        Cell(Message("step")),
        Cell(Message("strongest token")),
        Cell(Message("effect"), definition),
        Cell(Message("second strongest")),
        Cell(Message("effect"), definition),
    ]
    return Table(Message("Where the difference is"), header, rows)


HEAD_COLUMNS = {
    Message("restores"): ("restore", "output"),
    Message("disrupts"): ("disrupt", "output"),
    Message("by weights (M)"): ("restore", "weights"),
    Message("by values (F)"): ("restore", "values"),
}


def head_table(dataset: "xarray.Dataset") -> Table:
    """The strongest heads: both directions, weights and values alone, and the token at which they act."""
    header = [
        Cell(Message("head")),
        *(Cell(title, str(dataset[name].attrs["definition"])) for title, (_, name) in HEAD_COLUMNS.items()),
        Cell(Message("strongest token")),
    ]
    rows = []
    for name in map(str, dataset.strong_head.values[:MAX_HEADS]):
        layer, head = (int(number) for number in name.removeprefix("L").split(".H"))
        numbers = [
            Cell(effect_text(dataset, field, direction=direction, layer=layer, head=head))
            for direction, field in HEAD_COLUMNS.values()
        ]
        by_token = np.abs(np.nan_to_num(dataset.head_token.sel(direction="restore", strong_head=name).values))
        rows.append([Cell(name), *numbers, Cell(token_place(dataset, int(by_token.argmax())))])
    return Table(Message("Heads that carry it, share of the difference"), header, rows)


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """The head that restores most."""
    output = dataset.output.sel(direction="restore")
    name, effect = largest_head(output)
    return Message(
        "{name} carries most of the difference: patched alone, it restores {effect}. All heads, one at a time, restore {total} in sum.",
        name=name,
        effect=format_percent(effect),
        total=format_percent(float(output.sum())),
    )


WORDS = Words(
    sentence=main_sentence,
    sections=(ReportSection("patch", 0, blocks),),
    report=OwnReport(
        "patch",
        Message("Patching: {text}"),
        can_describe=lambda results: False,
    ),
)
