"""The text that a command is about: typed, from a file, or from standard input."""

import sys
from pathlib import Path

from rheoscope.shapes import RheoscopeError

MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"
"""What stands first in a file that says of itself that it is Unicode."""


def text_of(text: str | None, file: Path | None) -> str:
    """The text typed, `-` for standard input, or what a file holds; one of them.

    >>> text_of("The keys", None)
    'The keys'
    """
    if (text is None) == (file is None):
        came = "no text" if text is None else "a text and --file"
        raise RheoscopeError(
            f'got {came}, expected one of them; type rheoscope "some text", or rheoscope --file notes.txt'
        )
    if file is not None:
        return read(file)
    said = piped() if text == "-" else typed(str(text))
    check_text(said)
    return said


def check_text(text: str | None) -> None:
    """Refuse a text of nothing but white space; none at all is another matter.

    >>> check_text(" ")
    Traceback (most recent call last):
    ...
    rheoscope.shapes.RheoscopeError: the text is empty; type rheoscope "some text"
    """
    if text is not None and not text.strip():
        raise RheoscopeError('the text is empty; type rheoscope "some text"')


def piped() -> str:
    """Standard input whole, without the end of its last line; bytes that are no UTF-8 are refused, whatever the locale is."""
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None:
        return typed(sys.stdin.read().removesuffix("\n"))
    try:
        text = stream.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise RheoscopeError(f"standard input is no text in UTF-8 (byte {error.start:,}); pipe text into it") from None
    return without_mark(text.replace("\r\n", "\n").removesuffix("\n"))


def typed(text: str) -> str:
    """A text as it was typed; bytes that are no UTF-8 reach a program as halves of characters, and are refused."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RheoscopeError(f"the text is no UTF-8 at character {error.start:,}; type it in UTF-8") from None
    return without_mark(text)


def without_mark(text: str) -> str:
    """The text without the byte order mark that some editors put before it, which a model would read as a word; said aloud."""
    if not text.startswith(MARK):
        return text
    print("a byte order mark (BOM) before the text is left out", file=sys.stderr)
    return text.removeprefix(MARK)


def read(file: Path) -> str:
    """A text file whole, without the end of its last line; what holds no text is refused by name."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RheoscopeError(f"there is no file {file}; type the name of a text file") from None
    except UnicodeDecodeError:
        raise RheoscopeError(f"{file} is no text in UTF-8; type the name of a text file") from None
    except OSError as error:
        raise RheoscopeError(f"cannot read {file}: {error.strerror}; type the name of a text file") from error
    if "\0" in text:
        raise RheoscopeError(f"{file} is no text, it holds zero bytes; type the name of a text file")
    if not text.removeprefix(MARK).strip():
        raise RheoscopeError(f"{file} is empty, expected text")
    return without_mark(text.removesuffix("\n"))
