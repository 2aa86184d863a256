"""The text of a command: typed, piped or read from a file, and what is refused."""

import io
from pathlib import Path

import pytest

import rheoscope as rs
from rheoscope.files import unused_name
from rheoscope.report.input_text import MAX_TEXT_BYTES, resolve_text


def test_a_text_is_typed_piped_or_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt"
    file.write_text("Grüße\n\n", encoding="utf-8")
    assert resolve_text("a", None) == "a"
    assert resolve_text(None, file) == "Grüße\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert resolve_text("-", None) == "from a pipe"


def test_a_file_without_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "zero").write_bytes(b"a\0b")
    (tmp_path / "blank").write_text(" \n")
    for name, message in (("zero", "contains zero bytes"), ("blank", "is empty"), ("none", "there is no file")):
        with pytest.raises(rs.RheoscopeError, match=message):
            resolve_text(None, tmp_path / name)


def test_an_unused_name_has_the_lowest_free_number(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    assert unused_name(path) == path
    path.touch()
    (tmp_path / "report-2.html").touch()
    assert unused_name(path) == tmp_path / "report-3.html"


def test_a_large_file_is_read_only_as_far_as_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file: a gigabyte that takes no space on the disk and would take minutes to read."""
    file = tmp_path / "large.txt"
    with file.open("wb") as stream:
        stream.write("é".encode() * 40_000)
        stream.truncate(2**30)
    with pytest.raises(
        rs.RheoscopeError,
        match=r"large.txt has 1074 MB, more than any model reads at once; on the command line type --first 1000 ",
    ):
        resolve_text(None, file)
    assert set(resolve_text(None, file, n_first=50)) == {"é"}
    monkeypatch.setattr("sys.stdin", io.StringIO("a" * (MAX_TEXT_BYTES + 1)))
    with pytest.raises(
        rs.RheoscopeError, match="standard input has more than 17 MB; on the command line type --first 1000"
    ):
        resolve_text("-", None)
    monkeypatch.setattr("sys.stdin", io.StringIO("a" * (MAX_TEXT_BYTES + 1)))
    assert len(resolve_text("-", None, n_first=10)) < 10_000
