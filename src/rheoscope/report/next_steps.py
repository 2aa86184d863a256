"""What to do next with a text: the card of the model, and three commands with this text in them."""

import shlex
from itertools import islice

from rheoscope.messages.message import Message, Verbatim
from rheoscope.picture.blocks import Block, Commands
from rheoscope.report.card_blocks import summary_line
from rheoscope.report.findings import ALL_WORDS
from rheoscope.space.results import Results

NEXT_REPORTS = [words.report for words in ALL_WORDS.values() if words.report is not None and words.report.next_step]
"""The reports that say more about a text, as the analyses declare them."""
NEXT_ANALYSES = {name: words.next_step for name, words in ALL_WORDS.items() if words.next_step}
"""Analyses that say more about any text, with what they show."""
N_COMMANDS = 3
CARD_COMMAND = "rheoscope card"
DEFAULT_MODEL = "the default model"
"""The name of the model that commands use without --model."""


def blocks(results: Results) -> list[Block]:
    """The answers of the model's card in a sentence, and commands for this text, unless it has control characters."""
    if results.trace is None:
        return []
    text, command = results.trace.text, card_command(results)
    name = command.removeprefix(CARD_COMMAND).strip()
    line = Message(
        "One text proves nothing about a model. {command} answers claims over many texts.",
        command=Verbatim(command),
    )
    if results.card is not None:
        line = Message(
            "{command} for this model: {summary}", command=Verbatim(command), summary=summary_line(results.card)
        )
    if not text.replace("\n", " ").isprintable() or not text:
        return [Commands(Message("Next"), line, {})]
    options = f" --model {name}" if name else ""
    commands = {
        f"rheoscope {beginning}{options} {quoted(text)}": description
        for beginning, description in islice(next_steps(results).items(), N_COMMANDS)
    }
    return [Commands(Message("Next"), line, commands)]


def next_steps(results: Results) -> dict[str, str]:
    """Beginnings of commands that can describe the text, and what they show. Reports come first, then analyses."""
    reports = {
        f"{report.name} {report.next_options}".strip(): report.next_step
        for report in NEXT_REPORTS
        if report.can_describe(results)
    }
    return reports | {f"analyse {name}": description for name, description in NEXT_ANALYSES.items()}


def card_command(results: Results) -> str:
    """The command that computes the card of the model, or prints a stored one."""
    model = str(results.view.facts.get("model", DEFAULT_MODEL))
    return CARD_COMMAND if model == DEFAULT_MODEL else f"{CARD_COMMAND} {shlex.quote(model)}"


def quoted(text: str) -> str:
    """The text as one word of a shell. A text that starts with a dash needs -- before it.

    >>> print(quoted("two words"), quoted("-x"))
    'two words' -- -x
    """
    return f"-- {shlex.quote(text)}" if text.startswith("-") else shlex.quote(text)
