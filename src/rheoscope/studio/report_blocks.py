"""Blocks of a report as JSON, so that the page shows what the terminal and the report show."""

from typing import Any

from rheoscope.picture.blocks import Block, Drawing, Facts, Lines, OpeningRows, Table
from rheoscope.studio.wire import value_json

BLOCK_TAGS: dict[type, str] = {
    Table: "table",
    Lines: "lines",
    Drawing: "drawing",
    Facts: "facts",
    OpeningRows: "rows",
}
"""The blocks that the page can show, and their names on the wire."""


def block_json(block: Block) -> dict[str, Any]:
    """A block with the fields of its dataclass as keys, and its kind. A mapping is a list of pairs.

    >>> block_json(Facts("Provenance", {"seed": "0"}))
    {'block': 'facts', 'heading': 'Provenance', 'facts': [['seed', '0']]}
    """
    return {"block": BLOCK_TAGS[type(block)]} | value_json(block)
