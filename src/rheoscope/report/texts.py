"""The text that a command is about: typed, from a file, or from standard input."""

import sys
from pathlib import Path

from rheoscope.shapes import RheoscopeError

LARGEST = 2**24
"""Bytes of a text: far more than any model reads at once, and little enough to be read and cut in a moment."""
BYTES = 256
"""Bytes that are read for every token that is wanted: no tokens are longer, in the mean."""


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
    return _piped(first) if text == "-" else str(text)


def _piped(first: int | None) -> str:
    """Standard input, as far as it is needed."""
    most = _most(first)
    text = sys.stdin.read(most + 1)
    if len(text) > most and first is None:
        raise RheoscopeError(f"standard input has more than {size_of(most)}; {CUT}")
    return text[:most].removesuffix("\n")


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
    if not text.strip():
        raise RheoscopeError(f"{file} is empty, expected text")
    return text.removesuffix("\n")
