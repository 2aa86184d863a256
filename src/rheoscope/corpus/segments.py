"""Texts as a model reads them: tokenised, cut or packed to a length, and put together in batches of about one length.

A piece begins and ends as the tokenizer begins and ends any text, so its numbers are those of `model.trace(piece)` alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch
from jaxtyping import Int
from torch import Tensor

from rheoscope.corpus.input_texts import Row
from rheoscope.report.long_texts import between
from rheoscope.running.runner import Running
from rheoscope.shapes import RheoscopeError

FILES, ROWS, PIECES = 2**16, 2**32, 2**15
"""How many of each a text id can tell apart; together 63 bits."""
TOGETHER = 64
"""Rows that the tokenizer is given at once."""


@dataclass(frozen=True, eq=False)
class Piece:
    """A text as the model reads it. `text` is its id, fixed by the input; it begins at token `first` of row `row`."""

    text: int
    row: int
    first: int
    ids: Int[Tensor, " n"]


@dataclass(frozen=True)
class Reject:
    """A row of an input file, or a text of it, that has no place among the rows, and why."""

    row: int
    reason: str
    first: int = 0
    analysis: str = ""


class Cutting(Protocol):
    """How texts become pieces: at most `length` tokens each, at least `least`; packed ones are joined by `join` first."""

    @property
    def length(self) -> int: ...
    @property
    def least(self) -> int: ...
    @property
    def pack(self) -> bool: ...
    @property
    def join(self) -> str: ...


def text_id(file: int, row: int, piece: int) -> int:
    """A text's id: later files, rows and pieces have larger ones.

    >>> text_id(0, 0, 1) < text_id(0, 1, 0) < text_id(1, 0, 0) < 2**63
    True
    """
    return (file * ROWS + row) * PIECES + piece


def cut(model: Running, file: int, rows: Iterable[Row], how: Cutting) -> tuple[list[Piece], list[Reject]]:
    """The texts of some rows in pieces, and what has none."""
    pieces: list[Piece] = []
    rejects: list[Reject] = []
    bare = model.encode("")
    before, _, after = between(bare, model.encode("a"))
    own = how.length - len(before) - len(after)
    texts = _tokenised(model, bare, rows, how, rejects)
    for row, first, at, inner in _packed(texts, own) if how.pack else _each(texts, own):
        ids = torch.tensor([*before, *inner, *after])
        if len(ids) < how.least:
            rejects.append(Reject(row, f"it has fewer than {how.least} tokens", first))
        elif at >= PIECES:
            rejects.append(Reject(row, f"it has more than {PIECES} pieces", first))
        else:
            pieces.append(Piece(text_id(file, row, at), row, first, ids))
    return pieces, rejects


def _tokenised(
    model: Running, bare: list[int], rows: Iterable[Row], how: Cutting, rejects: list[Reject]
) -> Iterator[tuple[int, list[int]]]:
    """(row, the tokens of its text alone)."""
    left = iter(rows)
    while some := list(islice(left, TOGETHER)):
        rejects += [Reject(row.number, row.reason) for row in some if row.reason]
        fine = [row for row in some if not row.reason]
        for row, ids in zip(fine, _ids(model, [row.text + how.join * how.pack for row in fine]), strict=True):
            inner = [] if isinstance(ids, RheoscopeError) else between(bare, ids)[1]
            if inner:
                yield row.number, inner
            else:
                rejects.append(Reject(row.number, str(ids) if isinstance(ids, RheoscopeError) else "it has no tokens"))


def _ids(model: Running, texts: list[str]) -> list[list[int] | RheoscopeError]:
    """The ids of every text; where one cannot be read, why."""
    try:
        return [*model.encode_many(texts)]
    except RheoscopeError as error:
        if len(texts) == 1:
            return [error]
    return [found for text in texts for found in _ids(model, [text])]


def _each(texts: Iterable[tuple[int, list[int]]], own: int) -> Iterator[tuple[int, int, int, list[int]]]:
    """(row, first token, number of the piece, its tokens), text by text."""
    for row, inner in texts:
        for at, low in enumerate(range(0, len(inner), own)):
            yield row, low, at, inner[low : low + own]


def _packed(texts: Iterable[tuple[int, list[int]]], own: int) -> Iterator[tuple[int, int, int, list[int]]]:
    """The same of all texts joined: a piece belongs to the row in which it begins."""
    held: list[int] = []
    begin, at = (0, 0), 0
    for row, inner in texts:
        low = 0
        while low < len(inner):
            if not held:
                at = at + 1 if begin[0] == row and low else 0
                begin = row, low
            some = inner[low : low + own - len(held)]
            held, low = held + some, low + len(some)
            if len(held) == own:
                yield *begin, at, held
                held = []
    if held:
        yield *begin, at, held


def batches(pieces: Sequence[Piece], tokens: int) -> Iterator[list[Piece]]:
    """Pieces of about one length together, with at most so many tokens, padding counted: the shortest first.

    >>> some = [Piece(at, at, 0, torch.arange(n)) for at, n in enumerate([5, 2, 5, 3])]
    >>> [[len(one.ids) for one in batch] for batch in batches(some, 10)]
    [[2, 3], [5, 5]]
    """
    together: list[Piece] = []
    for piece in sorted(pieces, key=lambda one: (len(one.ids), one.text)):
        if together and (len(together) + 1) * len(piece.ids) > tokens:
            yield together
            together = []
        together.append(piece)
    if together:
        yield together
