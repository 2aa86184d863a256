"""Texts from files: the same rows in every format, every row in one shard, and a reason for every unusable row."""

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rheoscope.corpus.input_texts import MAX_ROW_BYTES, Reader, Row, input_files, plan_shards
from rheoscope.shapes import RheoscopeError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
TEXTS = ["one two", "drei für", "", "四", "five " * 30, "six"]


def read(path: Path, size: int = 40) -> list[Row]:
    """All rows, shard by shard."""
    inputs, shards = plan_shards([str(path)], "text", size)
    reader = Reader("text")
    assert [shard.first for shard in shards] == [0, *(shard.first + shard.rows for shard in shards)][:-1]
    return [row for shard in shards for row in reader.read_rows(inputs[shard.file].path, shard)]


def write_texts(folder: Path, suffix: str) -> Path:
    """The same texts in a file of some type."""
    file = folder / f"texts{suffix}"
    plain = "".join(f"{text}\n" for text in TEXTS).encode()
    content = "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS).encode()
    if suffix == ".parquet":
        pq.write_table(pa.table({"id": range(6), "text": TEXTS}), file, row_group_size=4)
    elif suffix == ".arrow":
        with pa.ipc.new_stream(file, pa.schema([("text", pa.string())])) as stream:
            stream.write_table(pa.table({"text": TEXTS}), max_chunksize=4)
    elif suffix.endswith(".gz"):
        file.write_bytes(gzip.compress(content if "jsonl" in suffix else plain))
    elif suffix.endswith(".zst"):
        with pa.CompressedOutputStream(str(file), "zstd") as stream:
            stream.write(content if "jsonl" in suffix else plain)
    else:
        file.write_bytes(content if "jsonl" in suffix else plain)
    return file


SUFFIXES = [".txt", ".jsonl", ".txt.gz", ".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_gives_the_same_rows(suffix: str, tmp_path: Path) -> None:
    assert read(write_texts(tmp_path, suffix)) == [Row(number, text) for number, text in enumerate(TEXTS) if text]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet", ".arrow"])
def test_shards_can_be_read_in_any_order(suffix: str, tmp_path: Path) -> None:
    inputs, shards = plan_shards([str(write_texts(tmp_path, suffix))], "text", 10)
    assert len(shards) > 2
    reader = Reader("text")
    backwards = [row for shard in reversed(shards) for row in reversed(reader.read_rows(inputs[0].path, shard))]
    assert [row.text for row in reversed(backwards)] == [text for text in TEXTS if text]
    row_numbers = [row.number for shard in shards[::2] for row in Reader("text").read_rows(inputs[0].path, shard)]
    assert row_numbers == sorted(row_numbers)


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0\ufeff"), max_size=30), min_size=1
    ),
    st.integers(1, 80),
)
@settings(max_examples=15)
def test_every_line_is_in_exactly_one_shard(texts: list[str], size: int) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "a.txt"
        file.write_bytes("".join(f"{text}\n" for text in texts).encode())
        assert read(file, size) == [Row(number, text) for number, text in enumerate(texts) if text.strip()]


def test_unusable_rows_have_a_reason_and_the_others_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    raw_lines = [
        b'{"text": "fine"}',
        b"{broken",
        b'{"text": 3}',
        b'{"other": "x"}',
        b'{"text": "\xff"}',
        b'{"text": "half \\ud800"}',
    ]
    raw_lines += [b'{"text": "' + b"x" * MAX_ROW_BYTES + b'"}', b"", b'{"text": "last"}']
    file.write_bytes(b"\n".join(raw_lines))
    rows = read(file, 10**9)
    assert [row.text for row in rows if not row.reason] == ["fine", "last"]
    assert [row.number for row in rows if row.reason] == [1, 2, 3, 4, 5, 6]
    reasons = " ".join(row.reason for row in rows)
    assert all(
        pattern in reasons
        for pattern in ("invalid JSON", "no text in 'text'", "invalid UTF-8 at byte", "unpaired surrogate", "4 MB")
    )


def test_a_damaged_archive_is_read_up_to_the_damage(tmp_path: Path) -> None:
    file = tmp_path / "a.txt.gz"
    content = "".join(f"line {number} {number * 7919 % 1000003}\n" for number in range(20_000)).encode()
    file.write_bytes(gzip.compress(content)[:-4000])
    rows = read(file, 10**5)
    assert len(rows) > 100
    assert "damaged" in rows[-1].reason
    assert all(row.text.startswith("line") for row in rows[:-1])


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    file = write_texts(tmp_path, ".txt")
    inputs, shards = plan_shards([str(file)], "text", 40)
    file.write_bytes(file.read_bytes().replace(b"six", b"SIX"))
    assert Reader("text").read_rows(inputs[0].path, shards[0])
    with pytest.raises(RheoscopeError, match="has changed in rows"):
        Reader("text").read_rows(inputs[0].path, shards[-1])


def test_a_directory_means_its_files_of_known_types(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "sub/a.jsonl.gz", "notes.md", "state.json", "cache-1.arrow", ".hidden.txt"):
        (tmp_path / name).write_bytes(b"")
    assert [file.name for file in input_files([str(tmp_path)])] == ["b.txt", "a.jsonl.gz"]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("missing.txt", "there is no file"),
        ("a.png", "unknown file type"),
        ("empty", "contains no .txt"),
        ("blank.txt", "has no rows"),
    ],
)
def test_unreadable_inputs_are_refused(name: str, pattern: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.png").write_bytes(b"x")
    (tmp_path / "blank.txt").write_bytes(b"")
    with pytest.raises(RheoscopeError, match=pattern):
        plan_shards([str(tmp_path / name)], "text", 10)


def test_a_table_without_the_column_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(RheoscopeError, match="has no column 'text'; its columns are id; type column='id'"):
        plan_shards([str(tmp_path / "a.parquet")], "text", 10)
    with pytest.raises(RheoscopeError, match="has the type int64, expected strings"):
        plan_shards([str(tmp_path / "a.parquet")], "id", 10)
