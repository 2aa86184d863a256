"""The card of the model below the story of a text, or the command that makes one."""

from rheoscope.messages.message import Command, Message
from rheoscope.picture.blocks import Block, Lines
from rheoscope.report.card_rows import opening_rows
from rheoscope.report.card_texts import texts_of_card
from rheoscope.report.next_steps import card_command
from rheoscope.space.results import Results


def blocks(results: Results) -> list[Block]:
    """The forest plot of the stored card, whose rows open. Without a card, one line."""
    if results.trace is None:
        return []
    if results.card is not None:
        return [opening_rows(results.card, texts_of_card(results.card))]
    if not results.view.reads_tokens:  # the package has no images and no sounds
        return []
    command = Command(card_command(results))
    line = Message(
        "No card of this model is stored. {command} answers claims about it over many texts.", command=command
    )
    return [Lines(Message("The card of this model"), [line])]
