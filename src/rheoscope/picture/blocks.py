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
    title: str = ""
    small: str = ""
    style: str = ""


@dataclass(frozen=True)
class Table:
    """A heading, columns and rows. Numbers are flush right; `words` are the columns that hold text, by number.

    `small` says what is small beside numbers, `note` is one line below; a row in `ends` closes a group.
    """

    heading: str
    header: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    words: frozenset[int] = frozenset({0})
    small: str = ""
    note: str = ""
    ends: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Lines:
    """A heading and sentences."""

    heading: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Tokens:
    """A text in its tokens, each with what is known of it; `marked` ones stand out."""

    heading: str
    words: Sequence[str]
    tips: Sequence[str]
    marked: frozenset[int]


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
class Answered:
    """A question, the word that answers it, the line that says why, and what to type to see more."""

    question: str
    answer: str
    line: str
    deeper: str


@dataclass(frozen=True)
class Questions:
    """A heading and questions with their answers; `note` is one line below."""

    heading: str
    answered: Sequence[Answered]
    note: str = ""


Block = Questions | Table | Lines | Tokens | Drawing | Facts


def named(block: Block, after: str) -> Block:
    """The same block, its heading telling which text it is about.

    >>> named(Lines("Findings", []), " (text 1)").heading
    'Findings (text 1)'
    """
    if isinstance(block, Drawing):
        return Drawing(replace(block.picture, title=block.picture.title + after))
    return replace(block, heading=block.heading + after if block.heading else "")


def cells(row: Sequence[str | Cell]) -> list[Cell]:
    """Texts as entries.

    >>> cells(["a", Cell("b", small="c")])[0]
    Cell(text='a', title='', small='', style='')
    """
    return [one if isinstance(one, Cell) else Cell(one) for one in row]
