"""Consoles: plain printing, substitutes for characters that a console lacks, and output that cannot be written."""

import codecs
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

ASCII_FALLBACKS = {
    "α": "alpha", "δ": "delta", "Δ": "Delta", "σ": "sigma", "←": "<-", "̂": "^",
    "κ": "k", "Λ": "L", "λ": "l", "η": "n", "π": "pi", "Σ": "sum", "√": "sqrt", "‖": "|", "ᵀ": "T", "⁻": "-", "¹": "1", "²": "2",
    "³": "3", "₀": "0", "₁": "1", "₂": "2", "·": ".", "•": "*", "…": "...", "→": "->", "−": "-", "–": "-", "—": "-", "×": "x",
    "±": "+-", "≤": "<=", "≥": ">=", "≈": "~", "∞": "inf", "°": " deg", "↵": "$", "⇥": ">", "⟨": "<", "⟩": ">", "◌": "",
    "╭": "+", "╮": "+", "╰": "+", "╯": "+", "│": "|", "─": "-", "━": "-", "“": '"', "”": '"', "‘": "'", "’": "'", "�": "?",
}  # fmt: skip
"""Characters that Rheoscope prints → their ASCII substitutes."""


def ascii_fallback(character: str) -> str:
    """The substitute for a character that a console lacks: a readable one if there is one, otherwise its code.

    >>> ascii_fallback("κ"), ascii_fallback("中")
    ('k', '\\\\u4e2d')
    """
    return ASCII_FALLBACKS.get(character) or character.encode("ascii", "backslashreplace").decode()


def _unencodable_handler(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(ascii_fallback, error.object[error.start : error.end])), error.end


codecs.register_error("readable", _unencodable_handler)


def replace_unencodable(*streams: TextIO | Any) -> None:
    """Make these streams write the substitute for a character they cannot encode, instead of failing.

    >>> import io
    >>> old = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    >>> replace_unencodable(old)
    >>> _ = old.write("κ ≥ 中"), old.flush()
    >>> old.buffer.getvalue()
    b'k >= \\\\u4e2d'
    """
    for stream in streams:
        if hasattr(stream, "reconfigure"):  # the output of a notebook or of a test may have no encoding
            stream.reconfigure(errors="readable")


def ignore_zero_width() -> None:
    """Remove COLUMNS and LINES from the environment where they are 0: Rich would print nothing."""
    for name in ("COLUMNS", "LINES"):
        if os.environ.get(name) == "0":
            del os.environ[name]


def discard_output() -> None:
    """Send standard output to the null device from now on, so that Python can exit after it could not be written."""
    with suppress(OSError, ValueError):  # the output of a test has no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console(stderr: bool = False) -> "Console":
    """A console that prints text unchanged: square brackets and colons have no meaning.

    If the reader of a pipe has gone (`| head`), the rest of the output is dropped. Files are still written.
    """
    from rich.console import Console

    class PipeSafeConsole(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            discard_output()

    return PipeSafeConsole(stderr=stderr, highlight=False, markup=False, emoji=False)
