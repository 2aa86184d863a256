"""Files are written whole or not at all."""

from pathlib import Path

import pytest

from rheoscope.files import write_file
from rheoscope.shapes import RheoscopeError


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.html"
    target.write_text("old")

    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_file(target, fail)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_written_says_whether_something_was_replaced(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.html"
    assert write_file(target, lambda path: path.write_text("1")).startswith("wrote")
    assert write_file(target, lambda path: path.write_text("2")).startswith("replaced")


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(RheoscopeError, match="is a directory"):
        write_file(tmp_path, lambda path: path.write_text(""))
