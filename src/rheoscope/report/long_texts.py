"""Texts that are longer than a model reads: the first tokens of them, or all of them in pieces of one length."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rheoscope.report.input_text import size_of
from rheoscope.running.runner import Running
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Text

SHORTEST = 16
"""Tokens of a piece, below which most analyses have nothing to say."""
MOST = 1000
"""Pieces beyond which nobody waits for the end."""
WHOLE = 2**20
"""Letters that are tokenised in a moment."""
LETTERS = 16
"""Letters of a text for every token that a model reads: a text is looked at so far before it is tokenised whole."""


@dataclass(frozen=True)
class Pieces:
    """What of a text is analysed: one text as it was typed, one that was cut, or several; `left` tokens are in none."""

    texts: Sequence[Text]
    tokens: int = 0
    left: int = 0

    @property
    def told(self) -> str:
        """Several pieces in words.

        >>> Pieces([torch.arange(16)] * 3, 50, 2).told
        '50 tokens in 3 pieces of 16, the last 2 left out'
        """
        rest = f", the last {self.left} left out" if self.left else ""
        return f"{self.tokens:,} tokens in {len(self.texts):,} pieces of {len(self.texts[0]):,}{rest}"


def cut(model: Running, said: str, first: int | None, window: int | None = None, pieces: bool = True) -> Pieces:
    """A text as it is where the model reads all of it; its first tokens, or pieces, where that was typed; else it is refused.

    What the tokenizer puts before and after a text stands before and after each piece and counts as its tokens. `pieces` says
    whether the command knows --window.
    """
    longest = model.view.context
    _check(window, longest)
    wanted = first if first is not None else None if window else longest
    ids, whole = _encoded(model, said, wanted)
    if first is None and window is None:
        if longest is not None and len(ids) > longest:
            raise RheoscopeError(_too_long(len(ids), whole, said, longest, pieces))
        return Pieces([said], len(ids))
    before, inner, after = around(model, ids)
    if first is not None:
        inner = inner[: max(1, first - len(before) - len(after))]
    own = len(inner) if window is None else window - len(before) - len(after)
    count = 1 if window is None or len(inner) <= own else len(inner) // own
    if count > MOST:
        raise RheoscopeError(
            f"{len(ids):,} tokens are {count:,} pieces of {window}, expected {MOST:,} at most; type --first {MOST * own} as well"
        )
    texts = [torch.tensor([*before, *one, *after]) for one in _parts(inner, own, count)]
    if longest is not None and len(texts[0]) > longest:
        raise RheoscopeError(f"the model reads at most {longest:,} tokens, got --first {first}; type --first {longest}")
    return Pieces(texts, len(before) + len(inner) + len(after), max(0, len(inner) - own * count))


def part(model: Running, said: str, first: int | None) -> Text:
    """The text, or its first tokens: for commands that are about one text."""
    return cut(model, said, first, pieces=False).texts[0]


def around(model: Running, ids: list[int]) -> tuple[list[int], list[int], list[int]]:
    """The ids of a text as what the tokenizer puts before any text, the text's own, and what it puts after."""
    return between(model.encode(""), ids)


def between(bare: list[int], ids: list[int]) -> tuple[list[int], list[int], list[int]]:
    """The same, where `bare` are the ids of no text at all.

    >>> between([1, 2], [1, 7, 8, 2])
    ([1], [7, 8], [2])
    """
    before = next(
        (at for at, (one, own) in enumerate(zip(bare, ids, strict=False)) if one != own), min(len(bare), len(ids))
    )
    after = bare[before:] if ids[len(ids) - len(bare) + before :] == bare[before:] else []
    return bare[:before], ids[before : len(ids) - len(after)], after


def _parts(inner: list[int], own: int, count: int) -> list[list[int]]:
    return [inner[at * own : (at + 1) * own] for at in range(count)]


def _check(window: int | None, longest: int | None) -> None:
    most = longest or window or SHORTEST
    if window is not None and not SHORTEST <= window <= most:
        raise RheoscopeError(
            f"a piece has {SHORTEST} to {most:,} tokens, got --window {window}; type --window {min(512, most)}"
        )


def _encoded(model: Running, said: str, wanted: int | None) -> tuple[list[int], bool]:
    """The ids of a text, and whether of all of it: where its beginning has more tokens than are wanted, the rest is not looked at."""
    if model.tokenizer is None:
        return model.ids(said).tolist(), True
    letters = len(said) if wanted is None else min(len(said), max(WHOLE, LETTERS * wanted))
    while letters < len(said):
        ids = model.encode(said[:letters])
        if wanted is not None and len(ids) > wanted + 8:  # what is cut may end in other tokens than the whole
            return ids[:-4], False
        letters = min(len(said), 4 * letters)
    return model.encode(said), True


def _too_long(count: int, whole: bool, said: str, longest: int, pieces: bool) -> str:
    has = f"{count:,} tokens" if whole else f"{size_of(len(said))}, more than {longest:,} tokens"
    in_pieces = f", or --window {min(512, longest)} to analyse all of it in pieces" if pieces else ""
    return f"the text has {has}, the model reads at most {longest:,}; type --first {longest}{in_pieces}"
