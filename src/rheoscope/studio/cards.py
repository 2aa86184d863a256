"""The card of a model and the atlas of all stored cards, as blocks for the page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rheoscope.messages.message import Command, Message
from rheoscope.picture.blocks import Block, Lines
from rheoscope.report.atlas import FIELDS, atlas, atlas_blocks
from rheoscope.report.card_cache import find_card, stored_cards
from rheoscope.report.card_rows import card_blocks
from rheoscope.report.next_steps import card_command
from rheoscope.running.runner import RunnableModel
from rheoscope.space.results import Results
from rheoscope.studio.report_blocks import block_json

if TYPE_CHECKING:
    import xarray


def card_json(model: RunnableModel, is_untrained: bool = False) -> dict[str, Any]:
    """The stored card of a model. Without one, a sentence with the command that computes it."""
    card = None if is_untrained else find_card(model.view)
    blocks = card_blocks(card) if card is not None else [missing_card(model, is_untrained)]
    return {"stored": card is not None, "blocks": list(map(block_json, blocks))}


def missing_card(model: RunnableModel, is_untrained: bool) -> Block:
    """Why there is no card, and what to type."""
    line = Message("An untrained model has no card of its own. It is a control in the card of the trained model.")
    if not is_untrained:
        command = Command(card_command(Results(model.view, model.token_strings, None)))
        line = Message("No card of this model is stored. To compute it, type {command}", command=command)
    return Lines(Message("The card of this model"), [line])


def atlas_json() -> dict[str, Any]:
    """All stored cards: one forest plot per claim with models as rows, and a table of the answers."""
    cards = comparable_cards(stored_cards())
    table, drawing = atlas_blocks(atlas(cards))
    return {"models": len(cards), "blocks": [block_json(drawing), block_json(table)]}


def comparable_cards(cards: "Sequence[xarray.Dataset]") -> "list[xarray.Dataset]":
    """The cards that have every field of the atlas. A card of an earlier version may lack some."""
    return [card for card in cards if set(FIELDS) <= set(card.data_vars)]
