"""The text that a command is about: typed, from a file, or from standard input."""

import sys
from pathlib import Path

from rheoscope.shapes import RheoscopeError


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
    typed = sys.stdin.read().removesuffix("\n") if text == "-" else str(text)
    check_text(typed)
    return typed


def check_text(text: str | None) -> None:
    """Refuse a text of nothing but white space; none at all is another matter.

    >>> check_text(" ")
    Traceback (most recent call last):
    ...
    rheoscope.shapes.RheoscopeError: the text is empty; type rheoscope "some text"
    """
    if text is not None and not text.strip():
        raise RheoscopeError('the text is empty; type rheoscope "some text"')


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
    if not text.strip():
        raise RheoscopeError(f"{file} is empty, expected text")
    return text.removesuffix("\n")
