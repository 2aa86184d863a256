"""The text of a command: typed, read from a file, or read from standard input."""

import codecs
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rheoscope.messages.advice import Advice
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

MAX_TEXT_BYTES = 2**24
"""Longest text in bytes: far more than any model reads at once, and fast to read and cut."""
BYTES_PER_TOKEN = 256
"""Bytes read per requested token. The mean token is shorter in every vocabulary."""
BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"
"""The first character of some Unicode files."""

TYPE_A_TEXT = Advice("", 'rheoscope "The keys to the cabinet are"')
TYPE_A_FILE = Advice("", "--file notes.txt")
CUT_THE_TEXT = Advice(
    "", Message("--first 1000 for its first tokens, or --first 100000 --window 500 to analyse more of it in windows")
)


def resolve_text(text: str | None, file: Path | None, n_first: int | None = None) -> str:
    """The typed text, standard input (`-`) or the content of a file. Exactly one source must be given.

    With `n_first`, only the part of a large file that holds the first tokens is read.

    >>> resolve_text("The keys", None)
    'The keys'
    """
    if text is None and file is None:
        raise RheoscopeError(
            Message("got no text"),
            Advice("", Message('rheoscope "The keys to the cabinet are", or rheoscope --file notes.txt')),
        )
    if text is not None and file is not None:
        raise RheoscopeError(
            Message("got a text and --file, expected one of them"),
            Advice("", f"rheoscope --file {shlex.quote(str(file))}"),
        )
    if file is not None:
        return read_text_file(file, n_first)
    content = read_stdin(n_first) if text == "-" else clean_typed_text(str(text))
    check_text(content)
    return content


def resolve_pair(text: str | None, other: str | None, pairs: Path | None) -> tuple[str, str] | None:
    """Two typed texts, or None if a file of pairs is given instead. Exactly one source must be given.

    >>> resolve_pair("The men who", "The man who", None), resolve_pair(None, None, Path("pairs.jsonl"))
    (('The men who', 'The man who'), None)
    """
    if pairs is not None and text is None:
        return None
    if text is None or other is None or pairs is not None:
        problem = (
            Message("expected two texts, got one")
            if pairs is None and text is not None
            else Message("expected two texts, or --pairs with a file of them")
        )
        raise RheoscopeError(problem, Advice("", 'rheoscope patch "The men who live here" "The man who live here"'))
    for single_text in (text, other):
        check_text(single_text)
    return clean_typed_text(text), clean_typed_text(other)


def check_text(text: str | None) -> None:
    """Raise if a text is empty or white space. None means that no text was given, which is allowed here.

    >>> check_text(" ")
    Traceback (most recent call last):
    ...
    rheoscope.shapes.RheoscopeError: the text is empty; on the command line type rheoscope "The keys to the cabinet are"
    """
    if text is not None and not text.strip():
        raise RheoscopeError(Message("the text is empty"), TYPE_A_TEXT)


def check_target(target: str | None) -> None:
    """Raise if the target of an encoder-decoder is empty or white space. None means that no target was given.

    >>> check_target("")
    Traceback (most recent call last):
    ...
    rheoscope.shapes.RheoscopeError: the target is empty; on the command line type --target TEXT
    """
    if target is not None and not target.strip():
        raise RheoscopeError(Message("the target is empty"), Advice("", "--target TEXT"))


def read_stdin(n_first: int | None = None) -> str:
    """Standard input without its last line end. Bytes that are not UTF-8 raise, whatever the locale."""
    stream, max_bytes = getattr(sys.stdin, "buffer", None), _max_bytes(n_first)
    data = sys.stdin.read(max_bytes + 1) if stream is None else stream.read(max_bytes + 1)
    if len(data) > max_bytes and n_first is None:
        raise RheoscopeError(Message("standard input has more than {size}", size=format_size(max_bytes)), CUT_THE_TEXT)
    if isinstance(data, str):
        return clean_typed_text(data[:max_bytes].removesuffix("\n"))
    try:  # the cut may fall inside a character
        text = codecs.getincrementaldecoder("utf-8")().decode(data[:max_bytes], final=len(data) <= max_bytes)
    except UnicodeDecodeError as error:
        raise RheoscopeError(
            Message("standard input is not UTF-8 text (byte {position:,})", position=error.start),
            Advice("", "iconv -t UTF-8 notes.txt | rheoscope -"),
        ) from None
    return strip_byte_order_mark(text.replace("\r\n", "\n").removesuffix("\n"))


def clean_typed_text(text: str) -> str:
    """A typed text without a byte order mark. Bytes that are not UTF-8 arrive as surrogates and raise."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RheoscopeError(
            Message("the text is not UTF-8 at character {position:,}", position=error.start), TYPE_A_TEXT
        ) from None
    return strip_byte_order_mark(text)


def strip_byte_order_mark(text: str) -> str:
    """The text without a leading byte order mark, which a model would read as a token. A notice goes to stderr."""
    if not text.startswith(BYTE_ORDER_MARK):
        return text
    print(render(Message("removed the byte order mark (BOM) before the text")), file=sys.stderr)
    return text.removeprefix(BYTE_ORDER_MARK)


def _max_bytes(n_first: int | None) -> int:
    return MAX_TEXT_BYTES if n_first is None else min(MAX_TEXT_BYTES, BYTES_PER_TOKEN * n_first + 4096)


def format_size(n_bytes: int) -> Message:
    """A number of bytes for people.

    >>> format_size(900), format_size(30_000), format_size(300_000_000)
    ('900 bytes', '30 kB', '300 MB')
    """
    if n_bytes < 1000:
        return Message("{n} bytes", n=n_bytes)
    return Message("{n:.0f} kB", n=n_bytes / 1e3) if n_bytes < 1e6 else Message("{n:.0f} MB", n=n_bytes / 1e6)


def read_start(file: Path, n_first: int | None) -> str:
    """The whole file as text, or the part that holds its first tokens. A file that is too large raises unread."""
    size, max_bytes = file.stat().st_size, _max_bytes(n_first)
    if size > max_bytes and n_first is None:
        raise RheoscopeError(
            Message("{file} has {size}, more than any model reads at once", file=str(file), size=format_size(size)),
            CUT_THE_TEXT,
        )
    with file.open(encoding="utf-8") as stream:
        return stream.read(max_bytes)


@contextmanager
def refuse_unreadable(file: Path, advice: Advice) -> Iterator[None]:
    """Turn errors of reading a text file into one line, with what to type instead."""
    name = str(file)
    try:
        yield
    except FileNotFoundError:
        raise RheoscopeError(Message("there is no file {file}", file=name), advice) from None
    except UnicodeDecodeError:
        raise RheoscopeError(Message("{file} is not UTF-8 text", file=name), advice) from None
    except OSError as error:
        raise RheoscopeError(
            Message("cannot read {file}: {reason}", file=name, reason=error.strerror or str(error)), advice
        ) from error


def read_text_file(file: Path, n_first: int | None = None) -> str:
    """The text of a file without its last line end. A file without text raises, with its name."""
    name = str(file)
    with refuse_unreadable(file, TYPE_A_FILE):
        text = read_start(file, n_first)
    if "\0" in text:
        raise RheoscopeError(Message("{file} is not a text file: it contains zero bytes", file=name), TYPE_A_FILE)
    if not text.removeprefix(BYTE_ORDER_MARK).strip():
        raise RheoscopeError(Message("{file} is empty, expected text", file=name), TYPE_A_FILE)
    return strip_byte_order_mark(text.removesuffix("\n"))
