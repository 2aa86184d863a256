"""The text that a command is about: typed, from a file, or from standard input."""

import codecs
import sys
from pathlib import Path

from rheoscope.shapes import RheoscopeError

LARGEST = 2**24
"""Bytes of a text: far more than any model reads at once, and little enough to be read and cut in a moment."""
BYTES = 256
"""Bytes that are read for every token that is wanted: no tokens are longer, in the mean."""
MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"
"""What stands first in a file that says of itself that it is Unicode."""


def text_of(text: str | None, file: Path | None, first: int | None = None) -> str:
    """The text typed, `-` for standard input, or what a file holds; one of them. Of a large file only what `first` tokens need.

    >>> text_of("The keys", None)
    'The keys'
    """
    if (text is None) == (file is None):
        came = "no text" if text is None else "a text and --file"
        raise RheoscopeError(
            f'got {came}, expected one of them; type rheoscope "some text", or rheoscope --file notes.txt'
        )
    if file is not None:
        return read(file, first)
    said = piped(first) if text == "-" else typed(str(text))
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


def piped(first: int | None = None) -> str:
    """Standard input without the end of its last line, as far as it is needed; bytes that are no UTF-8 are refused, whatever the locale."""
    stream, most = getattr(sys.stdin, "buffer", None), _most(first)
    found = sys.stdin.read(most + 1) if stream is None else stream.read(most + 1)
    if len(found) > most and first is None:
        raise RheoscopeError(f"standard input has more than {size_of(most)}; {CUT}")
    if isinstance(found, str):
        return typed(found[:most].removesuffix("\n"))
    try:  # what was cut anywhere may end within a letter
        text = codecs.getincrementaldecoder("utf-8")().decode(found[:most], final=len(found) <= most)
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


def _most(first: int | None) -> int:
    return LARGEST if first is None else min(LARGEST, BYTES * first + 4096)


CUT = "type --first 1000 for its first tokens, or --first 100000 --window 500 for more of them in pieces"


def size_of(count: int) -> str:
    """Bytes as people say them.

    >>> size_of(900), size_of(30_000), size_of(300_000_000)
    ('900 bytes', '30 kB', '300 MB')
    """
    return f"{count} bytes" if count < 1000 else f"{count / 1e3:.0f} kB" if count < 1e6 else f"{count / 1e6:.0f} MB"


def beginning(file: Path, first: int | None) -> str:
    """A file as text: whole, or as much of it as its first tokens need; one that is too large is refused by its size alone."""
    size, most = file.stat().st_size, _most(first)
    if size > most and first is None:
        raise RheoscopeError(f"{file} has {size_of(size)}, more than any model reads at once; {CUT}")
    with file.open(encoding="utf-8") as opened:
        return opened.read(most)


def read(file: Path, first: int | None = None) -> str:
    """A text file without the end of its last line, as far as `first` tokens need it; what holds no text is refused by name."""
    try:
        text = beginning(file, first)
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
