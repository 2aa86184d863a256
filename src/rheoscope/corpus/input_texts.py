"""Texts from files: .txt, .jsonl, both also .gz and .zst, Parquet, and directories of these or of Arrow files (data sets).

A row is a line, or a row of a table. A row that holds no usable text is no error: it comes with the reason.
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

from rheoscope.report.input_text import BYTE_ORDER_MARK, format_size
from rheoscope.shapes import RheoscopeError

MAX_ROW_BYTES = 2**22
"""Bytes of one row: more is a whole data set in one line, which nobody meant as a text."""
TABLE_SUFFIXES = (".parquet", ".arrow")
TEXT_SUFFIXES = (".txt", ".text", ".jsonl", ".ndjson")
COMPRESSED_SUFFIXES = (".gz", ".zst")
READ_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)


class Row(NamedTuple):
    """One row of a file: its number from 0, its text, or why it has none."""

    number: int
    text: str
    reason: str = ""


class RawRow(NamedTuple):
    """A row as it stands in its file: `size` bytes of it, and the `data`, or why there is none (then what tells it apart)."""

    number: int
    data: bytes
    size: int
    reason: str = ""


@dataclass(frozen=True)
class Shard:
    """A unit of work: rows of one input file, fixed by the input alone. `offset` is the byte at which its first line begins."""

    number: int
    file: int
    first: int
    rows: int
    offset: int
    digest: str


@dataclass(frozen=True)
class Input:
    """A file that texts come from, as it was when the work was planned."""

    path: str
    size: int
    changed: int
    rows: int


def input_files(paths: list[str]) -> list[Path]:
    """Every file that is named, and of a directory every file of a kind that is known, in the order of their names."""
    files: list[Path] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            directory_files = sorted(
                file for file in path.rglob("*") if file.is_file() and file_kind(file) and not _is_hidden(file, path)
            )
            if not directory_files:
                raise RheoscopeError(f"{path} holds no .txt, .jsonl, .parquet or .arrow file; type the name of a file")
            files += directory_files
        elif not path.exists():
            raise RheoscopeError(f"there is no file {path}; type --texts and the name of a file or of a directory")
        elif not file_kind(path):
            raise RheoscopeError(
                f"{path} is of no kind that is read; type a name that ends in .txt, .jsonl (.gz, .zst), .parquet or .arrow"
            )
        else:
            files.append(path)
    if not files:
        raise RheoscopeError("no texts were named; type --texts and the name of a file or of a directory")
    return files


def _is_hidden(file: Path, root: Path) -> bool:
    """Whether it lies among what tools keep for themselves."""
    return any(part.startswith((".", "cache-")) for part in file.relative_to(root).parts)


def file_kind(path: Path) -> str:
    """How a file is read, by how its name ends; empty where it is not. A compressed file that says no more holds lines.

    >>> file_kind(Path("a.jsonl.gz")), file_kind(Path("a.parquet")), file_kind(Path("a.png")), file_kind(Path("enwik8.gz"))
    ('.jsonl', '.parquet', '', '.txt')
    """
    name = path.with_suffix("") if path.suffix.lower() in COMPRESSED_SUFFIXES else path
    suffix = name.suffix.lower() or ("" if name == path else ".txt")
    return suffix if suffix in TEXT_SUFFIXES or (suffix in TABLE_SUFFIXES and name == path) else ""


# Planning: every row is read once, so that each shard has a digest that whoever reads it later can check


def plan_shards(paths: list[str], column: str, shard_bytes: int) -> tuple[list[Input], list[Shard]]:
    """The inputs, and all of them as units of work of about `size` bytes each."""
    inputs: list[Input] = []
    shards: list[Shard] = []
    for file_index, path in enumerate(input_files(paths)):
        file_stat, rows = path.stat(), 0
        for first, count, offset, digest in _shard_ranges(path, column, shard_bytes):
            shards.append(Shard(len(shards), file_index, first, count, offset, digest))
            rows = first + count
        inputs.append(Input(str(path.resolve()), file_stat.st_size, file_stat.st_mtime_ns, rows))
    if not shards:
        raise RheoscopeError(f"{', '.join(paths)} hold no row; type the name of a file with texts")
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
    """What tells these rows from all others."""
    digest = blake2b(digest_size=16)
    for raw in rows:
        digest.update(raw.size.to_bytes(8, "little"))
        digest.update(raw.data)
    return digest.hexdigest()


# Reading


class Reader:
    """Reads shards of files. What cannot be jumped into, a compressed file or a table, is read on from where it was left."""

    def __init__(self, column: str) -> None:
        self.column = column
        self.resume_point: tuple[str, int, Iterator[RawRow]] | None = None

    def read_rows(self, path: str, shard: Shard) -> list[Row]:
        """The rows of a shard; refused where they are not those that were planned."""
        try:
            shard_rows = list(islice(self._rows_from(path, shard), shard.rows))
        except OSError as error:
            raise RheoscopeError(f"cannot read {path}: {error.strerror or error}; put it back and resume") from error
        if len(shard_rows) != shard.rows or rows_digest(shard_rows) != shard.digest:
            self.resume_point = None
            raise RheoscopeError(
                f"{path} has changed since the work was planned (rows {shard.first} to {shard.first + shard.rows - 1}); "
                "put the old file back, or type another --out"
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
    """The rows of a file from one on; `offset` is the byte at which it begins, where rows are lines."""
    return _column_rows(path, column, first) if file_kind(path) in TABLE_SUFFIXES else _line_rows(path, first, offset)


def _line_rows(path: Path, number: int, offset: int) -> Iterator[RawRow]:
    with _open_stream(path) as stream:
        if offset:
            stream.seek(offset)
        while True:
            try:
                raw = _read_line(stream, number)
            except READ_ERRORS as error:
                yield RawRow(number, b"", 1, f"the file is damaged here ({error}); nothing after it can be read")
                return
            if raw is None:
                return
            yield raw
            number += 1


def _read_line(stream: BinaryIO, number: int) -> RawRow | None:
    """The next line, or what tells a too long one apart; None at the end."""
    data = stream.readline(MAX_ROW_BYTES + 1)
    if len(data) <= MAX_ROW_BYTES:
        return RawRow(number, data, len(data)) if data else None
    digest, size = blake2b(data), len(data)
    while not data.endswith(b"\n") and (data := stream.readline(MAX_ROW_BYTES)):
        digest.update(data)
        size += len(data)
    return RawRow(
        number, digest.digest(), size, f"it has {format_size(size)}, a text at most {format_size(MAX_ROW_BYTES)}"
    )


def _open_stream(path: Path) -> Any:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.open(path, "rb")
    if suffix == ".zst":
        import pyarrow as pa

        return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"), 2**20)
    return path.open("rb", buffering=2**20)


def _column_rows(path: Path, column: str, first: int) -> Iterator[RawRow]:
    """The texts of a column of a table, from a row on."""
    number = first
    for values in _column_batches(path, column, first):
        for value in values.to_pylist():
            if isinstance(value, str):
                data = value.encode("utf-8", "surrogatepass")
                yield RawRow(number, data, len(data) + 1)
            else:
                yield RawRow(number, b"", 1, "it has no text")
            number += 1


def _column_batches(path: Path, column: str, first: int) -> Iterator[Any]:
    """Pieces of a column, without the rows before the first."""
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
                    f"the column {column!r} of {path} is {arrow_type}, expected texts; type --column NAME"
                )
            yield batch
    except pa.ArrowException as error:
        raise RheoscopeError(f"cannot read {path}: {str(error).splitlines()[0]}; type another file") from error


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


def _check_column(path: Path, column: str, names: list[str]) -> None:
    if column not in names:
        raise RheoscopeError(f"{path} has no column {column!r}, it has {', '.join(names)}; type --column NAME")


# From a row to its text


def _parse_row(raw: RawRow, kind: str, column: str) -> Row:
    """The text of a row, or why it has none; neither where it is blank."""
    if raw.reason:
        return Row(raw.number, "", raw.reason)
    try:
        text = raw.data.decode("utf-8")
    except UnicodeDecodeError as error:
        return Row(raw.number, "", f"it is no UTF-8 at byte {error.start}")
    text = text.removesuffix("\n").removesuffix("\r") if kind in TEXT_SUFFIXES else text
    text = text.removeprefix(BYTE_ORDER_MARK) if raw.number == 0 else text
    if not text.strip():
        return Row(raw.number, "")
    if kind in (".jsonl", ".ndjson"):
        return _parse_json_row(raw.number, text, column)
    return Row(raw.number, text) if "\0" not in text else Row(raw.number, "", "it holds zero bytes")


def _parse_json_row(number: int, line: str, column: str) -> Row:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Row(number, "", f"it is no JSON: {str(error).splitlines()[0]}")
    text = value.get(column) if isinstance(value, dict) else value
    if not isinstance(text, str):
        return Row(number, "", f"it has no text in {column!r}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return Row(number, "", "its text holds half a character")
    return Row(number, text if text.strip() else "")
