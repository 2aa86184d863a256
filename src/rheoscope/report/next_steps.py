"""What to do next with a text: the card of the model, and three commands with this text in them."""

import shlex
from itertools import islice

from rheoscope.messages.message import Command, Message
from rheoscope.picture.blocks import Block, Commands
from rheoscope.report.card_blocks import summary_line
from rheoscope.report.findings import ALL_WORDS
from rheoscope.report.input_media import IMAGE_INPUTS
from rheoscope.space.results import Results

NEXT_REPORTS = [words.report for words in ALL_WORDS.values() if words.report is not None and words.report.next_step]
"""The reports that say more about a text, as the analyses declare them."""
NEXT_ANALYSES = {name: words.next_step for name, words in ALL_WORDS.items() if words.next_step}
"""Analyses that say more about any text, with what they show."""
N_COMMANDS = 3
MAX_REPEATED_CHARS = 200
"""The longest text that every command repeats. A longer one, or one of several lines, is written once, as a shell variable."""
CARD_COMMAND = "rheoscope card"
DEFAULT_MODEL = "the default model"
"""The name of the model that commands use without --model."""


def blocks(results: Results) -> list[Block]:
    """The answers of the model's card in a sentence, and commands for this text."""
    if results.trace is None:
        return []
    model, line = model_arguments(results), card_line(results)
    if not results.view.reads_tokens:
        return [Commands(Message("Next"), medium_line(results), medium_commands(results))]
    setup, source = text_arguments(results)
    if not source or results.view.cross_heads or is_in_memory(results):  # other commands read no target
        return [Commands(Message("Next"), line, {})]
    options = f" --model {model}" if model else ""
    commands = {
        f"rheoscope {beginning}{options} {source}": description
        for beginning, description in islice(next_steps(results).items(), N_COMMANDS)
    }
    return [Commands(Message("Next"), line, commands, setup)]


def card_line(results: Results) -> Message:
    """The answers of the model's card in a sentence. Without a card, the command that computes it."""
    command = Command(card_command(results))
    if results.card is None:
        return Message(
            "One text proves nothing about a model. {command} answers claims over many texts.", command=command
        )
    return Message("For this model, {command} answers {summary}", command=command, summary=summary_line(results.card))


def medium_line(results: Results) -> Message:
    """The answers of the model's card in a sentence. Without a card, what one image or sound cannot show."""
    if results.card is not None:
        return card_line(results)
    if results.view.facts.get("input") in IMAGE_INPUTS:
        command = Command(card_command(results, "--images DIR"))
        return Message(
            "One image proves nothing about a model. {command} answers claims over many images.", command=command
        )
    command = Command(card_command(results, "--audio DIR"))
    return Message(
        "One sound proves nothing about a model. {command} answers claims over many sounds.", command=command
    )


def medium_commands(results: Results) -> dict[str, str]:
    """Commands that say more about an image or a sound of a file."""
    options = f"--model {model_arguments(results)} {results.text_options}"
    steps = {f"rheoscope analyse {name} {options}": description for name, description in NEXT_ANALYSES.items()}
    return dict(islice(steps.items(), N_COMMANDS)) if results.text_options else {}


def text_arguments(results: Results) -> tuple[str, str]:
    """A line to type first, and what gives this text to a command: its file, the text itself, or a shell variable.

    Both are empty for a text that no shell can pass on.
    """
    text = results.required_trace.text
    if results.text_options:
        return "", results.text_options
    if not text or "\0" in text:
        return "", ""
    if len(text) <= MAX_REPEATED_CHARS and "\n" not in text:
        return "", quoted(text)
    return f"TEXT={shell_word(text)}", '-- "$TEXT"' if text.startswith("-") else '"$TEXT"'


def next_steps(results: Results) -> dict[str, str]:
    """Beginnings of commands that can describe the text, and what they show. Reports come first, then analyses."""
    reports = {
        f"{report.name} {report.next_options}".strip(): report.next_step
        for report in NEXT_REPORTS
        if report.can_describe(results)
    }
    return reports | {f"analyse {name}": description for name, description in NEXT_ANALYSES.items()}


def card_command(results: Results, media_option: str = "") -> str:
    """The command that computes the card of the model, or prints a stored one: over texts, or over the files of an option."""
    if is_in_memory(results):
        return "rs.card(model, paths)" if media_option else "rs.card(model)"
    return " ".join(filter(None, (CARD_COMMAND, model_arguments(results), media_option)))


def is_in_memory(results: Results) -> bool:
    """Whether the model was opened in Python from an object, so that no command can name it."""
    return "opened_from" in results.view.facts


def model_arguments(results: Results) -> str:
    """The model as commands name it, with its adapter. Empty for the default model."""
    facts = results.view.facts
    if "adapter" in facts:
        return f"{shlex.quote(str(facts['base']))} --adapter {shlex.quote(str(facts['adapter']))}"
    name = str(facts.get("model", DEFAULT_MODEL))
    return "" if name == DEFAULT_MODEL else shlex.quote(name)


def quoted(text: str) -> str:
    """The text as one argument in a shell. A text that starts with a dash needs -- before it.

    >>> print(quoted("two words"), quoted("-x"))
    'two words' -- -x
    """
    return f"-- {shell_word(text)}" if text.startswith("-") else shell_word(text)


def shell_word(text: str) -> str:
    """The text as one word of a shell. Invisible characters are written as escapes.

    >>> print(shell_word("it's"), shell_word("\\ta"))
    'it'"'"'s' $'\\ta'
    """
    if text.replace("\n", " ").isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_escaped, text)) + "'"


def _escaped(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    if character == "\n" or character.isprintable():
        return character
    return character.encode("unicode_escape").decode()
