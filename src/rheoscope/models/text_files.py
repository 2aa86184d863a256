"""Reading UTF-8 text line by line from plain files, gzipped files or MediaWiki dumps, with one-line errors."""

import gzip
import re
import zlib
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.models.text_cleaning import articles, is_dump
from rheoscope.shapes import RheoscopeError

END_OF_TEXT = "<|endoftext|>"
SEPARATOR = re.compile(r"(?:\f|<\|endoftext\|>)\n?")


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file with their line ends. Gzip is recognised by the first bytes, not by the name.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.txt.gz"
    >>> _ = file.write_bytes(gzip.compress("one\\ntwo".encode()))
    >>> list(read_lines(file))
    ['one\\n', 'two']
    """
    _check_readable(path)
    offset = 0
    try:
        with gzip.open(path) if _is_gzipped(path) else path.open("rb") as handle:
            for raw in handle:
                yield _decode_line(path, raw, offset)
                offset += len(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise RheoscopeError(
            Message(
                "cannot read {path} after byte {offset:,} ({reason}); copy or download the file again",
                path=str(path),
                offset=offset,
                reason=str(error),
            )
        ) from error


def read_fragments(path: Path) -> Iterator[str | None]:
    """The text of a file in fragments, with None at the end of each document.

    A plain file is one document, or several separated by form feeds or ``<|endoftext|>``. A MediaWiki dump has one document per
    article (`rheoscope.models.text_cleaning`).

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = file.write_text("one\\n\\fand two\\n")
    >>> list(read_fragments(file))
    ['one\\n', '', None, 'and two\\n', None]
    """
    remaining = read_lines(path)
    first_lines = list(islice(remaining, 3))
    if is_dump("".join(first_lines)):
        for article in articles(chain(first_lines, remaining)):
            yield from (article, None)
        return
    for line in chain(first_lines, remaining):
        first, *later = SEPARATOR.split(line)
        yield first
        for fragment in later:
            yield from (None, fragment)
    yield None


def _check_readable(path: Path) -> None:
    if path.is_dir():
        raise RheoscopeError(
            Message("{path} is a directory, expected a text file", path=str(path)), Advice("", f"{path}/*.txt")
        )
    if not path.exists():
        raise RheoscopeError(
            Message("there is no file {path}; choose a text, a .gz of one or a MediaWiki dump", path=str(path))
        )
    if path.is_file() and not path.stat().st_size:
        raise RheoscopeError(Message("{path} is empty, expected text; choose another file", path=str(path)))


def _is_gzipped(path: Path) -> bool:
    with path.open("rb") as handle:
        return handle.read(2) == b"\x1f\x8b"


def _decode_line(path: Path, raw: bytes, offset: int) -> str:
    """A line as text. Raises with the offset in the unpacked text for NUL bytes and for bytes that are not UTF-8."""
    if b"\0" in raw:
        raise RheoscopeError(
            Message(
                "{path} is not text (byte {offset:,} is NUL); choose a file of UTF-8 text",
                path=str(path),
                offset=offset + raw.index(0),
            )
        )
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        byte_offset = offset + error.start
        raise RheoscopeError(
            Message(
                "{path} is not UTF-8 (byte {offset:,} is 0x{byte:02x})",
                path=str(path),
                offset=byte_offset,
                byte=raw[error.start],
            ),
            Advice("", f"iconv -t utf-8 {path}"),
        ) from error
    return text.removeprefix("\ufeff") if offset == 0 else text
