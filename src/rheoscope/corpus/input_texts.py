"""Texts from files: .txt, .jsonl (also .gz and .zst), Parquet, Arrow, and directories of these.

A row is a line or a row of a table. A row without a usable text is not an error; it carries a reason.
"""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from rheoscope.corpus.durable_files import content_digest
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.report.input_text import BYTE_ORDER_MARK, format_size
from rheoscope.shapes import RheoscopeError

MAX_ROW_BYTES = 2**22
"""The largest size of a row. A larger one is probably a whole data set on one line."""
TABLE_SUFFIXES = (".parquet", ".arrow")
JSON_SUFFIXES = (".jsonl", ".ndjson")
TEXT_SUFFIXES = (".txt", ".text", *JSON_SUFFIXES)
COMPRESSED_SUFFIXES = (".gz", ".zst")
EXAMPLE_TEXTS = use(texts=["texts.txt"])
MAX_COLUMN_ROWS = 1000
"""The number of JSON rows in which the column must occur at least once."""
READ_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)


class Row(NamedTuple):
    """One row of a file: its number from 0 and its text, or the reason why it has none."""

    number: int
    text: str
    reason: str = ""


class RawRow(NamedTuple):
    """A row as stored in its file: its size in bytes and its data.

    If there is a `reason`, `data` only identifies the row.
    """

    number: int
    data: bytes
    size: int
    reason: str = ""


@dataclass(frozen=True)
class Shard:
    """A unit of work: rows of one input file, determined by the input alone.

    `offset` is the byte position of its first line.
    """

    number: int
    file: int
    first: int
    rows: int
    offset: int
    digest: str


@dataclass(frozen=True)
class Input:
    """An input file, as it was when the shards were planned. The digest is that of its bytes."""

    path: str
    size: int
    digest: str
    rows: int

    def is_unchanged(self) -> bool:
        """Whether the file still has the same bytes."""
        try:
            return Path(self.path).stat().st_size == self.size and content_digest(Path(self.path)) == self.digest
        except OSError:
            return False


def input_files(paths: list[str]) -> list[Path]:
    """All named files, and all files of known types in named directories, sorted by name."""
    files: list[Path] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            directory_files = sorted(
                file for file in path.rglob("*") if file.is_file() and file_kind(file) and not _is_hidden(file, path)
            )
            if not directory_files:
                raise RheoscopeError(
                    Message("{path} contains no .txt, .jsonl, .parquet or .arrow file", path=str(path)), EXAMPLE_TEXTS
                )
            files += directory_files
        elif not path.exists():
            raise RheoscopeError(Message("there is no file {path}", path=str(path)), EXAMPLE_TEXTS)
        elif not file_kind(path):
            raise RheoscopeError(
                Message(
                    "{path} has an unknown file type, expected .txt, .jsonl (also .gz or .zst), .parquet or .arrow",
                    path=str(path),
                ),
                EXAMPLE_TEXTS,
            )
        else:
            files.append(path)
    if not files:
        raise RheoscopeError(Message("a corpus run needs at least one file of texts, got none"), EXAMPLE_TEXTS)
    return files


def _is_hidden(file: Path, root: Path) -> bool:
    """Whether a file is hidden or a cache."""
    return any(part.startswith((".", "cache-")) for part in file.relative_to(root).parts)


def file_kind(path: Path) -> str:
    """The type of a file by its suffix, empty if it is unknown.

    A compressed file without another suffix contains lines.

    >>> [file_kind(Path(name)) for name in ("a.jsonl.gz", "a.parquet", "a.png", "enwik8.gz")]
    ['.jsonl', '.parquet', '', '.txt']
    """
    name = path.with_suffix("") if path.suffix.lower() in COMPRESSED_SUFFIXES else path
    suffix = name.suffix.lower() or ("" if name == path else ".txt")
    return suffix if suffix in TEXT_SUFFIXES or (suffix in TABLE_SUFFIXES and name == path) else ""


# Planning: every row is read once, so that each shard has a digest that can be checked later


def plan_shards(paths: list[str], column: str, shard_bytes: int) -> tuple[list[Input], list[Shard]]:
    """The input files, and their shards of about `shard_bytes` bytes each."""
    inputs: list[Input] = []
    shards: list[Shard] = []
    for file_index, path in enumerate(input_files(paths)):
        _check_json_column(path, column)
        size, digest, rows = path.stat().st_size, content_digest(path), 0
        for first, count, offset, rows_hash in _shard_ranges(path, column, shard_bytes):
            shards.append(Shard(len(shards), file_index, first, count, offset, rows_hash))
            rows = first + count
        inputs.append(Input(str(path.resolve()), size, digest, rows))
    if not shards:
        raise RheoscopeError(Message("{paths} has no rows", paths=", ".join(paths)), EXAMPLE_TEXTS)
    return inputs, shards


def _shard_ranges(path: Path, column: str, shard_bytes: int) -> Iterator[tuple[int, int, int, str]]:
    """(first row, rows, offset, digest) of each shard of a file."""
    pending: list[RawRow] = []
    start_offset = offset = pending_bytes = 0
    for raw in raw_rows(path, column):
        pending.append(raw)
        offset, pending_bytes = offset + raw.size, pending_bytes + raw.size
        if pending_bytes >= shard_bytes:
            yield pending[0].number, len(pending), start_offset, rows_digest(pending)
            pending, start_offset, pending_bytes = [], offset, 0
    if pending:
        yield pending[0].number, len(pending), start_offset, rows_digest(pending)


def rows_digest(rows: list[RawRow]) -> str:
    """A hash of the rows."""
    digest = blake2b(digest_size=16)
    for raw in rows:
        digest.update(raw.size.to_bytes(8, "little"))
        digest.update(raw.data)
    return digest.hexdigest()


# Reading


class Reader:
    """Reads shards. Compressed files and tables have no random access, so reading continues from the last position."""

    def __init__(self, column: str) -> None:
        self.column = column
        self.resume_point: tuple[str, int, Iterator[RawRow]] | None = None

    def read_rows(self, path: str, shard: Shard) -> list[Row]:
        """The rows of a shard. Raises if they changed since the shards were planned."""
        try:
            shard_rows = list(islice(self._rows_from(path, shard), shard.rows))
        except OSError as error:
            raise RheoscopeError(
                Message(
                    "cannot read {path}: {reason}; restore it and resume the run",
                    path=path,
                    reason=error.strerror or str(error),
                )
            ) from error
        if len(shard_rows) != shard.rows or rows_digest(shard_rows) != shard.digest:
            self.resume_point = None
            raise RheoscopeError(
                Message(
                    "{path} has changed in rows {first} to {last} since the run started; restore it or choose another folder",
                    path=path,
                    first=shard.first,
                    last=shard.first + shard.rows - 1,
                )
            )
        kind = file_kind(Path(path))
        return [row for row in (_parse_row(raw, kind, self.column) for raw in shard_rows) if row.text or row.reason]

    def _rows_from(self, path: str, shard: Shard) -> Iterator[RawRow]:
        file = Path(path)
        if file.suffix.lower() in TEXT_SUFFIXES:
            return raw_rows(file, self.column, shard.first, shard.offset)
        if self.resume_point is not None and self.resume_point[0] == path and self.resume_point[1] <= shard.first:
            next_row, rows = self.resume_point[1], self.resume_point[2]
        elif file.suffix.lower() in COMPRESSED_SUFFIXES:
            next_row, rows = 0, raw_rows(file, self.column)
        else:
            next_row, rows = shard.first, raw_rows(file, self.column, shard.first)
        self.resume_point = path, shard.first + shard.rows, rows
        return islice(rows, shard.first - next_row, None)


def raw_rows(path: Path, column: str, first: int = 0, offset: int = 0) -> Iterator[RawRow]:
    """The rows of a file from `first` on. For lines, `offset` is the byte position of that row."""
    return _column_rows(path, column, first) if file_kind(path) in TABLE_SUFFIXES else _line_rows(path, first, offset)


def _line_rows(path: Path, number: int, offset: int) -> Iterator[RawRow]:
    with _open_stream(path) as stream:
        if offset:
            stream.seek(offset)
        while True:
            try:
                raw = _read_line(stream, number)
            except READ_ERRORS as error:
                reason = Message("the file is damaged from here on: {reason}", reason=str(error))
                yield RawRow(number, b"", 1, reason)
                return
            if raw is None:
                return
            yield raw
            number += 1


def _read_line(stream: BinaryIO, number: int) -> RawRow | None:
    """The next line, or a digest if it is too long; None at the end."""
    data = stream.readline(MAX_ROW_BYTES + 1)
    if len(data) <= MAX_ROW_BYTES:
        return RawRow(number, data, len(data)) if data else None
    digest, size = blake2b(data), len(data)
    while not data.endswith(b"\n") and (data := stream.readline(MAX_ROW_BYTES)):
        digest.update(data)
        size += len(data)
    reason = Message(
        "the row has {size}, at most {limit} are allowed", size=format_size(size), limit=format_size(MAX_ROW_BYTES)
    )
    return RawRow(number, digest.digest(), size, reason)


def _open_stream(path: Path) -> Any:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.open(path, "rb")
    if suffix == ".zst":
        import pyarrow as pa

        return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"), 2**20)
    return path.open("rb", buffering=2**20)


def _column_rows(path: Path, column: str, first: int) -> Iterator[RawRow]:
    """The texts of a table column, from row `first` on."""
    number = first
    for values in _column_batches(path, column, first):
        for value in values.to_pylist():
            if isinstance(value, str):
                data = value.encode("utf-8", "surrogatepass")
                yield RawRow(number, data, len(data) + 1)
            else:
                yield RawRow(number, b"", 1, Message("the row has no text"))
            number += 1


def _column_batches(path: Path, column: str, first: int) -> Iterator[Any]:
    """Batches of a column, without the rows before `first`."""
    import pyarrow as pa

    try:
        for batch in (
            _parquet_batches(path, column, first)
            if path.suffix.lower() == ".parquet"
            else _arrow_batches(path, column, first)
        ):
            arrow_type = batch.type
            if not (
                pa.types.is_string(arrow_type)
                or pa.types.is_large_string(arrow_type)
                or pa.types.is_string_view(arrow_type)
            ):
                raise RheoscopeError(
                    Message(
                        "the column {column!r} of {path} has the type {type}, expected strings",
                        column=column,
                        path=str(path),
                        type=str(arrow_type),
                    ),
                    Advice("column=NAME", "--column NAME"),
                )
            yield batch
    except pa.ArrowException as error:
        raise RheoscopeError(
            Message("cannot read {path}: {reason}", path=str(path), reason=str(error).splitlines()[0])
        ) from error


def _parquet_batches(path: Path, column: str, first: int) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        _check_column(path, column, file.schema_arrow.names)
        row_offset = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if row_offset + rows > first:
                skip = max(0, first - row_offset)
                for batch in file.iter_batches(1024, row_groups=[group], columns=[column]):
                    if skip < len(batch):
                        yield batch.column(0).slice(skip)
                    skip = max(0, skip - len(batch))
            row_offset += rows


def _arrow_batches(path: Path, column: str, first: int) -> Iterator[Any]:
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        try:
            batches = iter(pa.ipc.open_stream(file))
        except pa.ArrowInvalid:
            reader = pa.ipc.open_file(file)
            batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
        row_offset = 0
        for batch in batches:
            _check_column(path, column, batch.schema.names)
            if row_offset + len(batch) > first:
                yield batch.column(column).slice(max(0, first - row_offset))
            row_offset += len(batch)


def _check_json_column(path: Path, column: str) -> None:
    """Raise if the first rows of a JSON file are objects and none of them has the column.

    The columns with texts are listed first.
    """
    if file_kind(path) not in JSON_SUFFIXES:
        return
    text_names, other_names = dict[str, None](), dict[str, None]()
    for raw in islice(raw_rows(path, column), MAX_COLUMN_ROWS):
        try:
            value = json.loads(raw.data)
        except (ValueError, RecursionError):
            continue
        if not isinstance(value, dict) or column in value:
            return
        for name, cell in value.items():
            (text_names if isinstance(cell, str) else other_names)[name] = None
    names = [*text_names, *(name for name in other_names if name not in text_names)]
    if names:
        _check_column(path, column, names)


def _check_column(path: Path, column: str, names: list[str]) -> None:
    if column not in names:
        raise RheoscopeError(
            Message(
                "{path} has no column {column!r}; its columns are {columns}",
                path=str(path),
                column=column,
                columns=", ".join(names),
            ),
            use(column=names[0]) if names else None,
        )


# From a row to its text


def _parse_row(raw: RawRow, kind: str, column: str) -> Row:
    """The text of a row, or the reason why it has none. A blank row has neither."""
    if raw.reason:
        return Row(raw.number, "", raw.reason)
    try:
        text = raw.data.decode("utf-8")
    except UnicodeDecodeError as error:
        return Row(raw.number, "", Message("invalid UTF-8 at byte {position}", position=error.start))
    text = text.removesuffix("\n").removesuffix("\r") if kind in TEXT_SUFFIXES else text
    text = text.removeprefix(BYTE_ORDER_MARK) if raw.number == 0 else text
    if not text.strip():
        return Row(raw.number, "")
    if kind in JSON_SUFFIXES:
        return _parse_json_row(raw.number, text, column)
    return Row(raw.number, text) if "\0" not in text else Row(raw.number, "", Message("the text contains null bytes"))


def _parse_json_row(number: int, line: str, column: str) -> Row:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Row(number, "", Message("invalid JSON: {reason}", reason=str(error).splitlines()[0]))
    text = value.get(column) if isinstance(value, dict) else value
    if not isinstance(text, str):
        return Row(number, "", Message("no text in {column!r}", column=column))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return Row(number, "", Message("the text contains an unpaired surrogate"))
    return Row(number, text if text.strip() else "")
