"""Files are written whole or not at all, and never over what others wrote."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rheoscope.files import check_free, check_outputs, signature, signed, write_file, write_report
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


def written(folder: Path) -> dict[str, tuple[int, ...]]:
    """What was written of every file and when; a link that is only followed has another time of its last reading."""
    told = {file.name: file.lstat() for file in folder.iterdir()}
    return {name: (one.st_ino, one.st_mode, one.st_size, one.st_mtime_ns) for name, one in told.items()}


NAMES = ["a", "./a", "A", "b/../a", "link", "mine", "own", "b", "b/c", "a/c", "b/x.csv", "."]


@settings(max_examples=150, deadline=None)
@given(*(st.sampled_from([None, *NAMES]) for _ in range(4)))
def test_whatever_is_named_is_refused_or_every_file_is_its_own_and_nothing_of_others_is_lost(
    json: str | None, html: str | None, tables: str | None, read: str | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        (there / "link").symlink_to("a")
        (there / "mine").write_text("mine")
        (there / "own").write_text(f'{{"written_by": "{signature()}"}}')
        before = written(there)
        files = [there / name for name in (json, html) if name is not None]
        try:
            check_outputs(files, None if tables is None else there / tables, None if read is None else there / read)
        except RheoscopeError:
            assert written(there) == before
            return
        for at, file in enumerate(files):
            assert write_report(file, lambda path, at=at: path.write_text(str(at))).startswith(("wrote", "replaced"))
        assert [Path(os.path.realpath(file)).read_text() for file in files] == [str(at) for at in range(len(files))]
        assert (there / "mine").read_text() == "mine"
        assert (there / "link").is_symlink()


@pytest.mark.parametrize(
    ("begins", "own"),
    [
        (b'{\n "written_by": "Rheoscope 0.1.0",\n "a": 1}', True),
        (b'{"a": {"written_by": "Rheoscope 0.1.0"}}', False),
        (b'<!doctype html><html lang="en"><meta name="generator" content="Rheoscope 1">', True),
        (b"<!doctype html><p>Rheoscope 0.1.0", False),
        (b"analysis,file,column,definition,unit,null,depends_on\n", True),
        (b"analysis,value\n", False),
        (b"", False),
    ],
)
def test_own_files_are_known_by_how_they_begin(begins: bytes, own: bool, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(begins)
    assert signed(tmp_path / "a") == own


def test_a_picture_and_a_page_are_signed(tmp_path: Path) -> None:
    from rheoscope.report.page import Page, png, save
    from rheoscope.report.style import new_figure

    save(png(new_figure(1.0, 1.0)), tmp_path / "a.png")
    Page("A page").save(tmp_path / "a.html")
    assert signed(tmp_path / "a.png")
    assert signed(tmp_path / "a.html")


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far/a")
    for did in ("wrote", "replaced"):
        assert write_file(tmp_path / "link", lambda path: path.write_text("x")) == f"{did} {tmp_path / 'link'}"
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "a").read_text() == "x"


def test_what_was_made_for_nothing_is_gone_and_what_was_there_stays(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    (tmp_path / "there").mkdir()
    for below in ("new/deep", "there", "there/new"):
        with pytest.raises(OSError, match="disk full"):
            write_file(tmp_path / below / "a", fail)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["there"]


def test_a_long_name_has_a_temporary_one(tmp_path: Path) -> None:
    assert write_file(tmp_path / ("n" * 250), lambda path: path.write_text("x")).startswith("wrote")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RheoscopeError, match="Permission denied; type a name in another directory"):
        check_free(tmp_path / "new" / "a.html")
    tmp_path.chmod(0o700)
