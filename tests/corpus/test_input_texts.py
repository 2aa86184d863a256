"""Texts from files: the same rows whatever the format, each row in one shard, and a reason for every row without a text."""

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
    """Every row, shard by shard."""
    inputs, shards = plan_shards([str(path)], "text", size)
    reader = Reader("text")
    assert [shard.first for shard in shards] == [0, *(one.first + one.rows for one in shards)][:-1]
    return [row for shard in shards for row in reader.read_rows(inputs[shard.file].path, shard)]


def written(folder: Path, kind: str) -> Path:
    """The same texts as a file of a kind."""
    file = folder / f"texts{kind}"
    plain = "".join(f"{text}\n" for text in TEXTS).encode()
    lines = "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS).encode()
    if kind == ".parquet":
        pq.write_table(pa.table({"id": range(6), "text": TEXTS}), file, row_group_size=4)
    elif kind == ".arrow":
        with pa.ipc.new_stream(file, pa.schema([("text", pa.string())])) as stream:
            stream.write_table(pa.table({"text": TEXTS}), max_chunksize=4)
    elif kind.endswith(".gz"):
        file.write_bytes(gzip.compress(lines if "jsonl" in kind else plain))
    elif kind.endswith(".zst"):
        with pa.CompressedOutputStream(str(file), "zstd") as stream:
            stream.write(lines if "jsonl" in kind else plain)
    else:
        file.write_bytes(lines if "jsonl" in kind else plain)
    return file


KINDS = [".txt", ".jsonl", ".txt.gz", ".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_has_the_same_rows(kind: str, tmp_path: Path) -> None:
    assert read(written(tmp_path, kind)) == [Row(at, text) for at, text in enumerate(TEXTS) if text]


@pytest.mark.parametrize("kind", [".jsonl", ".jsonl.gz", ".parquet", ".arrow"])
def test_shards_can_be_read_in_any_order(kind: str, tmp_path: Path) -> None:
    inputs, shards = plan_shards([str(written(tmp_path, kind))], "text", 10)
    assert len(shards) > 2
    reader = Reader("text")
    backwards = [row for shard in reversed(shards) for row in reversed(reader.read_rows(inputs[0].path, shard))]
    assert [row.text for row in reversed(backwards)] == [text for text in TEXTS if text]
    every_second = [row.number for shard in shards[::2] for row in Reader("text").read_rows(inputs[0].path, shard)]
    assert every_second == sorted(every_second)


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0\ufeff"), max_size=30), min_size=1
    ),
    st.integers(1, 80),
)
@settings(max_examples=15)
def test_each_line_is_in_one_shard(texts: list[str], size: int) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "a.txt"
        file.write_bytes("".join(f"{text}\n" for text in texts).encode())
        assert read(file, size) == [Row(at, text) for at, text in enumerate(texts) if text.strip()]


def test_what_holds_no_text_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    rows = [
        b'{"text": "fine"}',
        b"{broken",
        b'{"text": 3}',
        b'{"other": "x"}',
        b'{"text": "\xff"}',
        b'{"text": "half \\ud800"}',
    ]
    rows += [b'{"text": "' + b"x" * MAX_ROW_BYTES + b'"}', b"", b'{"text": "last"}']
    file.write_bytes(b"\n".join(rows))
    found = read(file, 10**9)
    assert [row.text for row in found if not row.reason] == ["fine", "last"]
    assert [row.number for row in found if row.reason] == [1, 2, 3, 4, 5, 6]
    told = " ".join(row.reason for row in found)
    assert all(
        word in told for word in ("no JSON", "no text in 'text'", "no UTF-8 at byte", "half a character", "4 MB")
    )


def test_a_damaged_archive_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    file = tmp_path / "a.txt.gz"
    lines = "".join(f"line {at} {at * 7919 % 1000003}\n" for at in range(20_000)).encode()
    file.write_bytes(gzip.compress(lines)[:-4000])
    found = read(file, 10**5)
    assert len(found) > 100
    assert "damaged" in found[-1].reason
    assert all(row.text.startswith("line") for row in found[:-1])


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, ".txt")
    inputs, shards = plan_shards([str(file)], "text", 40)
    file.write_bytes(file.read_bytes().replace(b"six", b"SIX"))
    assert Reader("text").read_rows(inputs[0].path, shards[0])
    with pytest.raises(RheoscopeError, match="has changed since"):
        Reader("text").read_rows(inputs[0].path, shards[-1])


def test_a_directory_is_every_file_of_a_known_kind(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "sub/a.jsonl.gz", "notes.md", "state.json", "cache-1.arrow", ".hidden.txt"):
        (tmp_path / name).write_bytes(b"")
    assert [file.name for file in input_files([str(tmp_path)])] == ["b.txt", "a.jsonl.gz"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing.txt", "there is no file"),
        ("a.png", "is of no kind"),
        ("empty", "holds no .txt"),
        ("blank.txt", "hold no row"),
    ],
)
def test_what_cannot_be_read_is_refused_at_once(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.png").write_bytes(b"x")
    (tmp_path / "blank.txt").write_bytes(b"")
    with pytest.raises(RheoscopeError, match=said):
        plan_shards([str(tmp_path / name)], "text", 10)


def test_a_table_without_the_column_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(RheoscopeError, match="has no column 'text', it has id"):
        plan_shards([str(tmp_path / "a.parquet")], "text", 10)
    with pytest.raises(RheoscopeError, match="expected texts"):
        plan_shards([str(tmp_path / "a.parquet")], "id", 10)
