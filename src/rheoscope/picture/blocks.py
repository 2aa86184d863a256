"""What an answer says, as values: tables, lines, pictures and facts, whoever draws them.

A block is made once, from Answers; the terminal and the page each know how to show one, and neither knows the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rheoscope.picture.picture import Picture


@dataclass(frozen=True)
class Cell:
    """An entry of a table with a definition one hover away, a small addition, such as a null, and a colour in a terminal."""

    text: str
    definition: str = ""
    small_text: str = ""
    style: str = ""


@dataclass(frozen=True)
class Table:
    """A heading, columns and rows. Numbers are flush right; `words` are the columns that hold text, by number.

    `small` says what is small beside numbers, `note` is one line below; a row in `ends` closes a group.
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
    """A text in its tokens, each with what is known of it; `marked` ones stand out."""

    heading: str
    token_texts: Sequence[str]
    tips: Sequence[str]
    marked_tokens: frozenset[int]


@dataclass(frozen=True)
class Drawing:
    """A picture; only a page draws it."""

    picture: Picture


@dataclass(frozen=True)
class Facts:
    """Names and what they stand for."""

    heading: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class AnsweredQuestion:
    """A question, the word that answers it, the line that says why, and what to type to see more."""

    question: str
    answer: str
    line: str
    deeper: str


@dataclass(frozen=True)
class Questions:
    """A heading and questions with their answers; `note` is one line below."""

    heading: str
    questions: Sequence[AnsweredQuestion]
    note: str = ""


Block = Questions | Table | Lines | Tokens | Drawing | Facts


def with_heading_suffix(block: Block, suffix: str) -> Block:
    """The same block, its heading telling which text it is about.

    >>> with_heading_suffix(Lines("Findings", []), " (text 1)").heading
    'Findings (text 1)'
    """
    if isinstance(block, Drawing):
        return Drawing(replace(block.picture, title=block.picture.title + suffix))
    return replace(block, heading=block.heading + suffix if block.heading else "")


def to_cells(row: Sequence[str | Cell]) -> list[Cell]:
    """Texts as entries.

    >>> to_cells(["a", Cell("b", small_text="c")])[0]
    Cell(text='a', definition='', small_text='', style='')
    """
    return [entry if isinstance(entry, Cell) else Cell(entry) for entry in row]
