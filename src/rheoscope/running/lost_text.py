"""Characters of a text that its tokenizer cannot represent. A text without any other character is refused."""

import warnings
from collections.abc import Sequence

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

MAX_SHOWN = 20
"""The largest number of lost characters that a message shows."""
Span = tuple[int, int]


class LostTextWarning(UserWarning):
    """Part of a text has no token, so no analysis sees it."""


def lost_characters(text: str, spans: Sequence[Span]) -> str:
    """The characters that no span covers. White space does not count, because many tokenizers drop it.

    >>> lost_characters("a bold 𝄞!", [(0, 1), (2, 6), (8, 9)])
    '𝄞'
    """
    covered = bytearray(len(text))
    for start, end in spans:
        covered[start:end] = b"\1" * (end - start)
    return "".join(
        character
        for character, is_covered in zip(text, covered, strict=True)
        if not is_covered and not character.isspace()
    )


def lost_text_message(text: str, spans: Sequence[Span]) -> Message | None:
    """How much of a text the tokenizer lost, or None if nothing.

    >>> lost_text_message("a bold 𝄞!", [(0, 1), (2, 6), (8, 9)])
    'the tokenizer lost 1 of 7 characters: 𝄞'
    """
    lost = lost_characters(text, spans)
    if not lost:
        return None
    return Message(
        "the tokenizer lost {lost} of {total} characters: {shown}",
        lost=len(lost),
        total=count_characters(text),
        shown=_first_characters(lost),
    )


def count_characters(text: str) -> int:
    """The number of characters that are not white space."""
    return sum(not character.isspace() for character in text)


def _first_characters(lost: str) -> str:
    return lost[:MAX_SHOWN] + ("…" if len(lost) > MAX_SHOWN else "")


def check_lost_text(text: str, spans: Sequence[Span]) -> None:
    """Warn if the tokenizer drops part of a text or maps it to the unknown token. Raise if nothing is left.

    `spans` are the first and last character of every token that stands for text, the last one excluded.
    """
    lost = lost_characters(text, spans)
    if not lost:
        return
    if len(lost) == count_characters(text):
        raise RheoscopeError(
            Message(
                "the vocabulary of this model cannot represent the text ({shown}); use another text",
                shown=_first_characters(lost),
            ),
            Advice("model.trace([1, 2, 3])"),
        )
    warnings.warn(lost_text_message(text, spans) or "", LostTextWarning, stacklevel=3)
