"""The text that a command is about: typed, from a file, or from standard input."""

import codecs
import sys
from pathlib import Path

from rheoscope.shapes import RheoscopeError

MAX_TEXT_BYTES = 2**24
"""Bytes of a text: far more than any model reads at once, and little enough to be read and cut in a moment."""
BYTES_PER_TOKEN = 256
"""Bytes that are read for every token that is wanted: no tokens are longer, in the mean."""
BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"
"""What stands first in a file that says of itself that it is Unicode."""


def resolve_text(text: str | None, file: Path | None, n_first: int | None = None) -> str:
    """The text typed, `-` for standard input, or what a file holds; one of them. Of a large file only what `first` tokens need.

    >>> resolve_text("The keys", None)
    'The keys'
    """
    if (text is None) == (file is None):
        received = "no text" if text is None else "a text and --file"
        raise RheoscopeError(
            f'got {received}, expected one of them; type rheoscope "some text", or rheoscope --file notes.txt'
        )
    if file is not None:
        return read_text_file(file, n_first)
    content = read_stdin(n_first) if text == "-" else clean_typed_text(str(text))
    check_text(content)
    return content


def check_text(text: str | None) -> None:
    """Refuse a text of nothing but white space; none at all is another matter.

    >>> check_text(" ")
    Traceback (most recent call last):
    ...
    rheoscope.shapes.RheoscopeError: the text is empty; type rheoscope "some text"
    """
    if text is not None and not text.strip():
        raise RheoscopeError('the text is empty; type rheoscope "some text"')


def read_stdin(n_first: int | None = None) -> str:
    """Standard input without the end of its last line, as far as it is needed; bytes that are no UTF-8 are refused, whatever the locale."""
    stream, max_bytes = getattr(sys.stdin, "buffer", None), _max_bytes(n_first)
    data = sys.stdin.read(max_bytes + 1) if stream is None else stream.read(max_bytes + 1)
    if len(data) > max_bytes and n_first is None:
        raise RheoscopeError(f"standard input has more than {format_size(max_bytes)}; {CUT_ADVICE}")
    if isinstance(data, str):
        return clean_typed_text(data[:max_bytes].removesuffix("\n"))
    try:  # what was cut anywhere may end within a letter
        text = codecs.getincrementaldecoder("utf-8")().decode(data[:max_bytes], final=len(data) <= max_bytes)
    except UnicodeDecodeError as error:
        raise RheoscopeError(f"standard input is no text in UTF-8 (byte {error.start:,}); pipe text into it") from None
    return strip_byte_order_mark(text.replace("\r\n", "\n").removesuffix("\n"))


def clean_typed_text(text: str) -> str:
    """A text as it was typed; bytes that are no UTF-8 reach a program as halves of characters, and are refused."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RheoscopeError(f"the text is no UTF-8 at character {error.start:,}; type it in UTF-8") from None
    return strip_byte_order_mark(text)


def strip_byte_order_mark(text: str) -> str:
    """The text without the byte order mark that some editors put before it, which a model would read as a word; said aloud."""
    if not text.startswith(BYTE_ORDER_MARK):
        return text
    print("a byte order mark (BOM) before the text is left out", file=sys.stderr)
    return text.removeprefix(BYTE_ORDER_MARK)


def _max_bytes(n_first: int | None) -> int:
    return MAX_TEXT_BYTES if n_first is None else min(MAX_TEXT_BYTES, BYTES_PER_TOKEN * n_first + 4096)


CUT_ADVICE = "type --first 1000 for its first tokens, or --first 100000 --window 500 for more of them in pieces"


def format_size(n_bytes: int) -> str:
    """Bytes as people say them.

    >>> format_size(900), format_size(30_000), format_size(300_000_000)
    ('900 bytes', '30 kB', '300 MB')
    """
    return (
        f"{n_bytes} bytes"
        if n_bytes < 1000
        else f"{n_bytes / 1e3:.0f} kB"
        if n_bytes < 1e6
        else f"{n_bytes / 1e6:.0f} MB"
    )


def read_start(file: Path, n_first: int | None) -> str:
    """A file as text: whole, or as much of it as its first tokens need; one that is too large is refused by its size alone."""
    size, max_bytes = file.stat().st_size, _max_bytes(n_first)
    if size > max_bytes and n_first is None:
        raise RheoscopeError(f"{file} has {format_size(size)}, more than any model reads at once; {CUT_ADVICE}")
    with file.open(encoding="utf-8") as stream:
        return stream.read(max_bytes)


def read_text_file(file: Path, n_first: int | None = None) -> str:
    """A text file without the end of its last line, as far as `first` tokens need it; what holds no text is refused by name."""
    try:
        text = read_start(file, n_first)
    except FileNotFoundError:
        raise RheoscopeError(f"there is no file {file}; type the name of a text file") from None
    except UnicodeDecodeError:
        raise RheoscopeError(f"{file} is no text in UTF-8; type the name of a text file") from None
    except OSError as error:
        raise RheoscopeError(f"cannot read {file}: {error.strerror}; type the name of a text file") from error
    if "\0" in text:
        raise RheoscopeError(f"{file} is no text, it holds zero bytes; type the name of a text file")
    if not text.removeprefix(BYTE_ORDER_MARK).strip():
        raise RheoscopeError(f"{file} is empty, expected text")
    return strip_byte_order_mark(text.removesuffix("\n"))
