"""Reading text as UTF-8, plain, gzipped or as a MediaWiki dump: a line at a time, and one line when a file is no text."""

import gzip
import re
import zlib
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from rheoscope.models.text_cleaning import articles, is_dump
from rheoscope.shapes import RheoscopeError

END_OF_TEXT = "<|endoftext|>"
SEPARATOR = re.compile(r"(?:\f|<\|endoftext\|>)\n?")


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, ends of line kept; a gzipped one is known by its first bytes, whatever its name.

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
        raise RheoscopeError(f"cannot read {path} after byte {offset:,} ({error}); get the file again") from error


def read_fragments(path: Path) -> Iterator[str | None]:
    """The text of a file in pieces, and None wherever a document ends.

    A plain file is one document, or several where form feeds or ``<|endoftext|>`` stand between them; a MediaWiki dump
    gives one document an article (`rheoscope.models.text_cleaning`).

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
        raise RheoscopeError(f"{path} is a directory, expected a text file; type the files in it, as {path}/*.txt")
    if not path.exists():
        raise RheoscopeError(f"there is no file {path}; type the path of a text, a .gz of one or a MediaWiki dump")
    if path.is_file() and not path.stat().st_size:
        raise RheoscopeError(f"{path} is empty, expected text; type another file")


def _is_gzipped(path: Path) -> bool:
    with path.open("rb") as handle:
        return handle.read(2) == b"\x1f\x8b"


def _decode_line(path: Path, raw: bytes, offset: int) -> str:
    """A line as text; what is not UTF-8, or holds a NUL, is told with the byte (of the unpacked text) where it stands."""
    if b"\0" in raw:
        raise RheoscopeError(f"{path} is no text: byte {offset + raw.index(0):,} is NUL; type a file of UTF-8 text")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        byte_offset = offset + error.start
        raise RheoscopeError(
            f"{path} is not UTF-8: byte {byte_offset:,} is 0x{raw[error.start]:02x}; convert it: iconv -t utf-8 {path}"
        ) from error
    return text.removeprefix("\ufeff") if offset == 0 else text
