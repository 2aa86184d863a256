"""Consoles as they are: what one cannot show is written otherwise, and nothing that is printed means anything to it."""

import codecs
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

ASCII_FALLBACKS = {
    "κ": "k", "Λ": "L", "λ": "l", "η": "n", "π": "pi", "Σ": "sum", "√": "sqrt", "‖": "|", "ᵀ": "T", "⁻": "-", "¹": "1", "²": "2",
    "³": "3", "₀": "0", "₁": "1", "₂": "2", "·": ".", "•": "*", "…": "...", "→": "->", "−": "-", "–": "-", "—": "-", "×": "x",
    "±": "+-", "≤": "<=", "≥": ">=", "≈": "~", "∞": "inf", "°": " deg", "↵": "$", "⇥": ">", "⟨": "<", "⟩": ">", "◌": "",
    "╭": "+", "╮": "+", "╰": "+", "╯": "+", "│": "|", "─": "-", "━": "-", "“": '"', "”": '"', "‘": "'", "’": "'", "�": "?",
}  # fmt: skip
"""Signs of ours, by what stands for them on a console that has no such sign."""


def ascii_fallback(character: str) -> str:
    """What stands for a sign: a readable one of ours, or its number.

    >>> ascii_fallback("κ"), ascii_fallback("中")
    ('k', '\\\\u4e2d')
    """
    return ASCII_FALLBACKS.get(character) or character.encode("ascii", "backslashreplace").decode()


def _unencodable_handler(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(ascii_fallback, error.object[error.start : error.end])), error.end


codecs.register_error("readable", _unencodable_handler)


def replace_unencodable(*streams: TextIO | Any) -> None:
    """From now on these streams write what they have no sign for as `replaced` says, instead of failing.

    >>> import io
    >>> old = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    >>> replace_unencodable(old)
    >>> _ = old.write("κ ≥ 中"), old.flush()
    >>> old.buffer.getvalue()
    b'k >= \\\\u4e2d'
    """
    for stream in streams:
        if hasattr(
            stream, "reconfigure"
        ):  # what stands in for a console in a notebook or in a test may have no encoding
            stream.reconfigure(errors="readable")


def console(stderr: bool = False) -> "Console":
    """A console that takes every text as it is: square brackets and colons mean nothing, and styles are given as styles.

    Where the reader of a pipe has gone (`| head`), what is still to be said is dropped, and files are written all the same.
    """
    from rich.console import Console

    class PipeSafeConsole(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return PipeSafeConsole(stderr=stderr, highlight=False, markup=False, emoji=False)
