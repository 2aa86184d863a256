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

from rheoscope.report.input_text import MARK, size_of
from rheoscope.shapes import RheoscopeError

LONGEST = 2**22
"""Bytes of one row: more is a whole data set in one line, which nobody meant as a text."""
TABLES = (".parquet", ".arrow")
PLAIN = (".txt", ".text", ".jsonl", ".ndjson")
PACKED = (".gz", ".zst")
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


class Row(NamedTuple):
    """One row of a file: its number from 0, its text, or why it has none."""

    number: int
    text: str
    reason: str = ""


class Raw(NamedTuple):
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


def files_of(paths: list[str]) -> list[Path]:
    """Every file that is named, and of a directory every file of a kind that is known, in the order of their names."""
    found: list[Path] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.is_file() and kind_of(one) and not _aside(one, path))
            if not inside:
                raise RheoscopeError(f"{path} holds no .txt, .jsonl, .parquet or .arrow file; type the name of a file")
            found += inside
        elif not path.exists():
            raise RheoscopeError(f"there is no file {path}; type --texts and the name of a file or of a directory")
        elif not kind_of(path):
            raise RheoscopeError(
                f"{path} is of no kind that is read; type a name that ends in .txt, .jsonl (.gz, .zst), .parquet or .arrow"
            )
        else:
            found.append(path)
    if not found:
        raise RheoscopeError("no texts were named; type --texts and the name of a file or of a directory")
    return found


def _aside(file: Path, root: Path) -> bool:
    """Whether it lies among what tools keep for themselves."""
    return any(part.startswith((".", "cache-")) for part in file.relative_to(root).parts)


def kind_of(path: Path) -> str:
    """How a file is read, by how its name ends; empty where it is not. A compressed file that says no more holds lines.

    >>> kind_of(Path("a.jsonl.gz")), kind_of(Path("a.parquet")), kind_of(Path("a.png")), kind_of(Path("enwik8.gz"))
    ('.jsonl', '.parquet', '', '.txt')
    """
    name = path.with_suffix("") if path.suffix.lower() in PACKED else path
    suffix = name.suffix.lower() or ("" if name == path else ".txt")
    return suffix if suffix in PLAIN or (suffix in TABLES and name == path) else ""


# Planning: every row is read once, so that each shard has a digest that whoever reads it later can check


def plan(paths: list[str], column: str, size: int) -> tuple[list[Input], list[Shard]]:
    """The inputs, and all of them as units of work of about `size` bytes each."""
    inputs: list[Input] = []
    shards: list[Shard] = []
    for at, path in enumerate(files_of(paths)):
        about, rows = path.stat(), 0
        for first, count, offset, digest in _ranges(path, column, size):
            shards.append(Shard(len(shards), at, first, count, offset, digest))
            rows = first + count
        inputs.append(Input(str(path.resolve()), about.st_size, about.st_mtime_ns, rows))
    if not shards:
        raise RheoscopeError(f"{', '.join(paths)} hold no row; type the name of a file with texts")
    return inputs, shards


def _ranges(path: Path, column: str, size: int) -> Iterator[tuple[int, int, int, str]]:
    """(first row, rows, offset, digest) of each shard of a file."""
    held: list[Raw] = []
    begin = offset = bytes_held = 0
    for raw in raw_rows(path, column):
        held.append(raw)
        offset, bytes_held = offset + raw.size, bytes_held + raw.size
        if bytes_held >= size:
            yield held[0].number, len(held), begin, digest_of(held)
            held, begin, bytes_held = [], offset, 0
    if held:
        yield held[0].number, len(held), begin, digest_of(held)


def digest_of(rows: list[Raw]) -> str:
    """What tells these rows from all others."""
    seen = blake2b(digest_size=16)
    for raw in rows:
        seen.update(raw.size.to_bytes(8, "little"))
        seen.update(raw.data)
    return seen.hexdigest()


# Reading


class Reader:
    """Reads shards of files. What cannot be jumped into, a compressed file or a table, is read on from where it was left."""

    def __init__(self, column: str) -> None:
        self.column = column
        self.left: tuple[str, int, Iterator[Raw]] | None = None

    def rows(self, path: str, shard: Shard) -> list[Row]:
        """The rows of a shard; refused where they are not those that were planned."""
        try:
            found = list(islice(self._from(path, shard), shard.rows))
        except OSError as error:
            raise RheoscopeError(f"cannot read {path}: {error.strerror or error}; put it back and resume") from error
        if len(found) != shard.rows or digest_of(found) != shard.digest:
            self.left = None
            raise RheoscopeError(
                f"{path} has changed since the work was planned (rows {shard.first} to {shard.first + shard.rows - 1}); "
                "put the old file back, or type another --out"
            )
        kind = kind_of(Path(path))
        return [row for row in (_row(raw, kind, self.column) for raw in found) if row.text or row.reason]

    def _from(self, path: str, shard: Shard) -> Iterator[Raw]:
        file = Path(path)
        if file.suffix.lower() in PLAIN:
            return raw_rows(file, self.column, shard.first, shard.offset)
        if self.left is not None and self.left[0] == path and self.left[1] <= shard.first:
            at, rows = self.left[1], self.left[2]
        elif file.suffix.lower() in PACKED:
            at, rows = 0, raw_rows(file, self.column)
        else:
            at, rows = shard.first, raw_rows(file, self.column, shard.first)
        self.left = path, shard.first + shard.rows, rows
        return islice(rows, shard.first - at, None)


def raw_rows(path: Path, column: str, first: int = 0, offset: int = 0) -> Iterator[Raw]:
    """The rows of a file from one on; `offset` is the byte at which it begins, where rows are lines."""
    return _cells(path, column, first) if kind_of(path) in TABLES else _lines(path, first, offset)


def _lines(path: Path, number: int, offset: int) -> Iterator[Raw]:
    with _opened(path) as stream:
        if offset:
            stream.seek(offset)
        while True:
            try:
                raw = _line(stream, number)
            except DAMAGED as error:
                yield Raw(number, b"", 1, f"the file is damaged here ({error}); nothing after it can be read")
                return
            if raw is None:
                return
            yield raw
            number += 1


def _line(stream: BinaryIO, number: int) -> Raw | None:
    """The next line, or what tells a too long one apart; None at the end."""
    data = stream.readline(LONGEST + 1)
    if len(data) <= LONGEST:
        return Raw(number, data, len(data)) if data else None
    seen, size = blake2b(data), len(data)
    while not data.endswith(b"\n") and (data := stream.readline(LONGEST)):
        seen.update(data)
        size += len(data)
    return Raw(number, seen.digest(), size, f"it has {size_of(size)}, a text at most {size_of(LONGEST)}")


def _opened(path: Path) -> Any:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.open(path, "rb")
    if suffix == ".zst":
        import pyarrow as pa

        return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"), 2**20)
    return path.open("rb", buffering=2**20)


def _cells(path: Path, column: str, first: int) -> Iterator[Raw]:
    """The texts of a column of a table, from a row on."""
    number = first
    for values in _columns(path, column, first):
        for value in values.to_pylist():
            if isinstance(value, str):
                data = value.encode("utf-8", "surrogatepass")
                yield Raw(number, data, len(data) + 1)
            else:
                yield Raw(number, b"", 1, "it has no text")
            number += 1


def _columns(path: Path, column: str, first: int) -> Iterator[Any]:
    """Pieces of a column, without the rows before the first."""
    import pyarrow as pa

    try:
        for batch in (
            _parquet(path, column, first) if path.suffix.lower() == ".parquet" else _arrow(path, column, first)
        ):
            kind = batch.type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
                raise RheoscopeError(f"the column {column!r} of {path} is {kind}, expected texts; type --column NAME")
            yield batch
    except pa.ArrowException as error:
        raise RheoscopeError(f"cannot read {path}: {str(error).splitlines()[0]}; type another file") from error


def _parquet(path: Path, column: str, first: int) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        _check_column(path, column, file.schema_arrow.names)
        begin = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if begin + rows > first:
                skip = max(0, first - begin)
                for batch in file.iter_batches(1024, row_groups=[group], columns=[column]):
                    if skip < len(batch):
                        yield batch.column(0).slice(skip)
                    skip = max(0, skip - len(batch))
            begin += rows


def _arrow(path: Path, column: str, first: int) -> Iterator[Any]:
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        try:
            batches = iter(pa.ipc.open_stream(file))
        except pa.ArrowInvalid:
            whole = pa.ipc.open_file(file)
            batches = (whole.get_batch(at) for at in range(whole.num_record_batches))
        begin = 0
        for batch in batches:
            _check_column(path, column, batch.schema.names)
            if begin + len(batch) > first:
                yield batch.column(column).slice(max(0, first - begin))
            begin += len(batch)


def _check_column(path: Path, column: str, names: list[str]) -> None:
    if column not in names:
        raise RheoscopeError(f"{path} has no column {column!r}, it has {', '.join(names)}; type --column NAME")


# From a row to its text


def _row(raw: Raw, kind: str, column: str) -> Row:
    """The text of a row, or why it has none; neither where it is blank."""
    if raw.reason:
        return Row(raw.number, "", raw.reason)
    try:
        text = raw.data.decode("utf-8")
    except UnicodeDecodeError as error:
        return Row(raw.number, "", f"it is no UTF-8 at byte {error.start}")
    text = text.removesuffix("\n").removesuffix("\r") if kind in PLAIN else text
    text = text.removeprefix(MARK) if raw.number == 0 else text
    if not text.strip():
        return Row(raw.number, "")
    if kind in (".jsonl", ".ndjson"):
        return _json_row(raw.number, text, column)
    return Row(raw.number, text) if "\0" not in text else Row(raw.number, "", "it holds zero bytes")


def _json_row(number: int, line: str, column: str) -> Row:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Row(number, "", f"it is no JSON: {str(error).splitlines()[0]}")
    text = told.get(column) if isinstance(told, dict) else told
    if not isinstance(text, str):
        return Row(number, "", f"it has no text in {column!r}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return Row(number, "", "its text holds half a character")
    return Row(number, text if text.strip() else "")
