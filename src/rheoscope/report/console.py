"""Consoles: replacements for characters that a console cannot show, and output without markup."""

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
"""ASCII replacements of the characters that Rheoscope prints."""


def ascii_fallback(character: str) -> str:
    """The ASCII replacement of a character: a readable one, or its code point.

    >>> ascii_fallback("κ"), ascii_fallback("中")
    ('k', '\\\\u4e2d')
    """
    return ASCII_FALLBACKS.get(character) or character.encode("ascii", "backslashreplace").decode()


def _unencodable_handler(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(ascii_fallback, error.object[error.start : error.end])), error.end


codecs.register_error("readable", _unencodable_handler)


def replace_unencodable(*streams: TextIO | Any) -> None:
    """Let these streams replace characters that they cannot encode by `ascii_fallback`, instead of failing.

    >>> import io
    >>> old = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    >>> replace_unencodable(old)
    >>> _ = old.write("κ ≥ 中"), old.flush()
    >>> old.buffer.getvalue()
    b'k >= \\\\u4e2d'
    """
    for stream in streams:
        if hasattr(stream, "reconfigure"):  # a notebook or a test may replace a console by an object without encoding
            stream.reconfigure(errors="readable")


def console(stderr: bool = False) -> "Console":
    """A console that prints text verbatim: square brackets and colons are not markup.

    If the reader of a pipe has gone (`| head`), further output is dropped. Files are still written.
    """
    from rich.console import Console

    class PipeSafeConsole(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return PipeSafeConsole(stderr=stderr, highlight=False, markup=False, emoji=False)
