"""Blocks of a report as values: tables, rows that open, sentences, tokens, facts, stories and pictures.

A block is built once from results. The terminal and the page each render it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rheoscope.messages.message import Message
from rheoscope.picture.picture import Panel, Picture


@dataclass(frozen=True)
class Cell:
    """A cell of a table. `definition` is its tooltip, `small_text` a small addition such as a null, `style` a terminal style."""

    text: str
    definition: str = ""
    small_text: str = ""
    style: str = ""


@dataclass(frozen=True)
class Table:
    """A heading, columns and rows. Numbers are right-aligned, except in the columns `text_columns`.

    `small_caption` explains the small additions. `note` is one line below the table. Each row in `group_ends` ends a group.
    """

    heading: str
    header: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    text_columns: frozenset[int] = frozenset({0})
    small_caption: str = ""
    note: str = ""
    group_ends: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Lines:
    """A heading and sentences."""

    heading: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text, each with a tooltip. Those in `marked_tokens` are highlighted."""

    heading: str
    token_texts: Sequence[str]
    tips: Sequence[str]
    marked_tokens: frozenset[int]


@dataclass(frozen=True)
class Drawing:
    """A picture. Pages draw it and the terminal omits it."""

    picture: Picture


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    heading: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class StoryEntry:
    """A line of a story: its title, its sentence, and the command that shows more (`deeper`; empty if there is none)."""

    title: str
    sentence: str
    deeper: str


@dataclass(frozen=True)
class Story:
    """A heading and the lines of a story. `note` is one line below. Pages draw the `panels`."""

    heading: str
    lines: Sequence[StoryEntry]
    note: str = ""
    panels: Sequence[Panel] = ()


@dataclass(frozen=True)
class Commands:
    """A heading, a sentence, and commands to type, each with its purpose. `setup` is a line to type before them."""

    heading: str
    line: str
    purposes: Mapping[str, str]
    setup: str = ""


@dataclass(frozen=True)
class RowDetail:
    """What an opened row shows: names and values, next to a panel."""

    facts: Mapping[str, str]
    panel: Panel


@dataclass(frozen=True)
class OpeningRow:
    """A row of a forest plot: a title, an answer and a number, next to a strip. It opens to its details."""

    title: str
    answer: str
    number: str
    strip: Panel
    details: Sequence[RowDetail]


@dataclass(frozen=True)
class OpeningRows:
    """A heading, a caption, the scale of all strips and their legend (name → colour and style), and rows that open."""

    heading: str
    caption: str
    scale: Panel
    legend: Mapping[str, tuple[str, str]]
    rows: Sequence[OpeningRow]


Block = Story | Table | OpeningRows | Lines | Tokens | Drawing | Facts | Commands


def with_text_number(block: Block, number: int) -> Block:
    """The same block, with the number of its text in the heading.

    >>> with_text_number(Lines("Findings", []), 1).heading
    'Findings (text 1)'
    """
    if isinstance(block, Drawing):
        title = Message("{heading} (text {number})", heading=block.picture.title, number=number)
        return Drawing(replace(block.picture, title=title))
    if not block.heading:
        return block
    return replace(block, heading=Message("{heading} (text {number})", heading=block.heading, number=number))


def to_cells(row: Sequence[str | Cell]) -> list[Cell]:
    """A row of texts and cells as cells.

    >>> to_cells(["a", Cell("b", small_text="c")])[0]
    Cell(text='a', definition='', small_text='', style='')
    """
    return [entry if isinstance(entry, Cell) else Cell(entry) for entry in row]
