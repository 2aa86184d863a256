"""The text of a command: from the command line, from a file or from standard input."""

import codecs
import sys
from pathlib import Path

from rheoscope.messages.advice import Advice
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

MAX_TEXT_BYTES = 2**24
"""The size limit of a text. It is far longer than any context, and still quick to read."""
BYTES_PER_TOKEN = 256
"""The number of bytes that are read for every requested token, more than any mean token length."""
BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"
"""The byte order mark at the start of some Unicode files."""


FILE_ADVICE = Advice("", "--file with the name of a text file")


def resolve_text(text: str | None, file: Path | None, n_first: int | None = None) -> str:
    """The text of the command line, of standard input (`-`) or of a file. Only what `n_first` tokens need is read.

    >>> resolve_text("The keys", None)
    'The keys'
    """
    if (text is None) == (file is None):
        problem = (
            Message("expected a text or --file, got none of them")
            if text is None
            else Message("expected a text or --file, got both of them")
        )
        raise RheoscopeError(problem, Advice("", 'rheoscope "some text", or rheoscope --file notes.txt'))
    if file is not None:
        return read_text_file(file, n_first)
    content = read_stdin(n_first) if text == "-" else clean_typed_text(str(text))
    check_text(content)
    return content


def check_text(text: str | None) -> None:
    """Raise if a text has white space only. None is allowed.

    >>> check_text(" ")
    Traceback (most recent call last):
    ...
    rheoscope.shapes.RheoscopeError: the text is empty; on the command line type rheoscope "some text"
    """
    if text is not None and not text.strip():
        raise RheoscopeError(Message("the text is empty"), Advice("", 'rheoscope "some text"'))


def read_stdin(n_first: int | None = None) -> str:
    """Standard input without its last line break, as far as it is needed. It must be UTF-8, whatever the locale."""
    stream, max_bytes = getattr(sys.stdin, "buffer", None), _max_bytes(n_first)
    data = sys.stdin.read(max_bytes + 1) if stream is None else stream.read(max_bytes + 1)
    if len(data) > max_bytes and n_first is None:
        raise RheoscopeError(
            Message("standard input has more than {size}", size=format_size(max_bytes)), TRUNCATION_ADVICE
        )
    if isinstance(data, str):
        return clean_typed_text(data[:max_bytes].removesuffix("\n"))
    try:  # a truncated input may end within a character
        text = codecs.getincrementaldecoder("utf-8")().decode(data[:max_bytes], final=len(data) <= max_bytes)
    except UnicodeDecodeError as error:
        raise RheoscopeError(Message("standard input is not UTF-8 (byte {position:,})", position=error.start)) from None
    return strip_byte_order_mark(text.replace("\r\n", "\n").removesuffix("\n"))


def clean_typed_text(text: str) -> str:
    """A text of the command line. Invalid UTF-8 arrives as lone surrogates and is refused."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RheoscopeError(Message("the text is not UTF-8 at character {position:,}", position=error.start)) from None
    return strip_byte_order_mark(text)


def strip_byte_order_mark(text: str) -> str:
    """The text without a byte order mark, which a model would read as a token. A notice goes to stderr."""
    if not text.startswith(BYTE_ORDER_MARK):
        return text
    print(render(Message("The byte order mark (BOM) before the text was removed.")), file=sys.stderr)
    return text.removeprefix(BYTE_ORDER_MARK)


def _max_bytes(n_first: int | None) -> int:
    return MAX_TEXT_BYTES if n_first is None else min(MAX_TEXT_BYTES, BYTES_PER_TOKEN * n_first + 4096)


TRUNCATION_ADVICE = Advice("", "--first 1000, or --first 100000 --window 500 to analyse it in windows")


def format_size(n_bytes: int) -> str:
    """A number of bytes with its unit.

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
    """A file as text, or its start if `n_first` tokens are enough. Raises if the file is too large."""
    size, max_bytes = file.stat().st_size, _max_bytes(n_first)
    if size > max_bytes and n_first is None:
        raise RheoscopeError(
            Message("{file} has {size}, more than any model reads at once", file=str(file), size=format_size(size)),
            TRUNCATION_ADVICE,
        )
    with file.open(encoding="utf-8") as stream:
        return stream.read(max_bytes)


def read_text_file(file: Path, n_first: int | None = None) -> str:
    """A text file without its last line break, as far as `n_first` tokens need it. Raises if it is not text."""
    try:
        text = read_start(file, n_first)
    except FileNotFoundError:
        raise RheoscopeError(Message("there is no file {file}", file=str(file)), FILE_ADVICE) from None
    except UnicodeDecodeError:
        raise RheoscopeError(Message("{file} is not text in UTF-8", file=str(file)), FILE_ADVICE) from None
    except OSError as error:
        problem = Message("cannot read {file}: {reason}", file=str(file), reason=error.strerror)
        raise RheoscopeError(problem, FILE_ADVICE) from error
    if "\0" in text:
        raise RheoscopeError(Message("{file} is not text, it has zero bytes", file=str(file)), FILE_ADVICE)
    if not text.removeprefix(BYTE_ORDER_MARK).strip():
        raise RheoscopeError(Message("{file} is empty, expected text", file=str(file)), FILE_ADVICE)
    return strip_byte_order_mark(text.removesuffix("\n"))
