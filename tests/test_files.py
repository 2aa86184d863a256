"""Files are written atomically, and foreign files are never replaced."""

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rheoscope.files import (
    check_outputs,
    check_writable,
    is_signed,
    signature,
    write_file,
    write_report,
    write_together,
)
from rheoscope.shapes import RheoscopeError


def test_failed_write_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.html"
    target.write_text("old")

    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_file(target, fail)
    target.write_text(f'{{"written_by": "{signature()}"}}')
    with pytest.raises(RheoscopeError, match=r"cannot write .*a.html: disk full; type "):
        write_report(target, fail)
    assert is_signed(target)
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_write_file_reports_whether_a_file_was_replaced(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.html"
    assert write_file(target, lambda path: path.write_text("1")).startswith("wrote")
    assert write_file(target, lambda path: path.write_text("2")).startswith("replaced")


def test_writing_to_a_directory_raises(tmp_path: Path) -> None:
    with pytest.raises(RheoscopeError, match="is a directory"):
        write_file(tmp_path, lambda path: path.write_text(""))


def file_stats(folder: Path) -> dict[str, tuple[int, ...]]:
    """Inode, mode, size and time of every file, without the access time, which following a link changes."""
    stats = {file.name: file.lstat() for file in folder.iterdir()}
    return {name: (stat.st_ino, stat.st_mode, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


NAMES = ["a", "./a", "A", "b/../a", "link", "mine", "own", "b", "b/c", "a/c", "b/x.csv", "."]


@settings(max_examples=150, deadline=None)
@given(*(st.sampled_from([None, *NAMES]) for _ in range(4)))
def test_outputs_are_refused_or_written_separately_without_loss(
    json: str | None, html: str | None, tables: str | None, read: str | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "link").symlink_to("a")
        (directory / "mine").write_text("mine")
        (directory / "own").write_text(f'{{"written_by": "{signature()}"}}')
        before = file_stats(directory)
        files = [directory / name for name in (json, html) if name is not None]
        table_directory, input_file = (None if name is None else directory / name for name in (tables, read))
        try:
            check_outputs(files, table_directory, input_file)
        except RheoscopeError:
            assert file_stats(directory) == before
            return
        for i, file in enumerate(files):
            assert write_report(file, lambda path, i=i: path.write_text(str(i))).startswith(("wrote", "replaced"))
        assert [Path(os.path.realpath(file)).read_text() for file in files] == [str(i) for i in range(len(files))]
        assert (directory / "mine").read_text() == "mine"
        assert (directory / "link").is_symlink()


@pytest.mark.parametrize(
    ("first_bytes", "expected"),
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
def test_signed_files_are_recognised_by_their_first_bytes(first_bytes: bytes, expected: bool, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(first_bytes)
    assert is_signed(tmp_path / "a") == expected


def test_images_and_pages_are_signed(tmp_path: Path) -> None:
    from rheoscope.report.page import Page, figure_png, save_bytes
    from rheoscope.report.style import new_figure

    save_bytes(figure_png(new_figure(1.0, 1.0)), tmp_path / "a.png")
    Page("A page").save(tmp_path / "a.html")
    assert is_signed(tmp_path / "a.png")
    assert is_signed(tmp_path / "a.html")


def test_write_file_follows_links(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target/a")
    for verb in ("wrote", "replaced"):
        assert write_file(tmp_path / "link", lambda path: path.write_text("x")) == f"{verb} {tmp_path / 'link'}"
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target" / "a").read_text() == "x"


def test_failed_write_removes_created_directories_and_keeps_existing_ones(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    (tmp_path / "existing").mkdir()
    for directory in ("new/deep", "existing", "existing/new"):
        with pytest.raises(OSError, match="disk full"):
            write_file(tmp_path / directory / "a", fail)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["existing"]


def test_long_name_has_a_temporary_name(tmp_path: Path) -> None:
    assert write_file(tmp_path / ("n" * 250), lambda path: path.write_text("x")).startswith("wrote")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RheoscopeError, match=r"Permission denied; type .*rheoscope\.html"):
        check_writable(tmp_path / "new" / "a.html")
    tmp_path.chmod(0o700)


def test_files_that_are_written_together_are_all_there_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "new" / "tables"
    write_together(directory, {"a.csv": "1", "b.csv": "2"})
    assert {path.name: path.read_text() for path in directory.iterdir()} == {"a.csv": "1", "b.csv": "2"}
    original = Path.replace

    def fail_for_c(self: Path, target: Path) -> Path:
        if self.name == "c.csv":
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(self, target)

    monkeypatch.setattr(Path, "replace", fail_for_c)
    with pytest.raises(RheoscopeError, match=r"tables: No space left on device; on the command line type df -h"):
        write_together(directory, {"a.csv": "3", "b.csv": "4", "new.csv": "5", "c.csv": "6"})
    assert {path.name: path.read_text() for path in directory.iterdir()} == {"a.csv": "1", "b.csv": "2"}
    with pytest.raises(RheoscopeError, match="No space left on device"):
        write_together(tmp_path / "other" / "tables", {"a.csv": "3", "c.csv": "6"})
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_tables_follow_links_and_keep_their_mode(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "a.csv").symlink_to("target/a.csv")
    write_together(tmp_path, {"a.csv": "1"})
    assert (tmp_path / "a.csv").is_symlink()
    assert (tmp_path / "target" / "a.csv").read_text() == "1"
    assert (tmp_path / "target" / "a.csv").stat().st_mode & 0o777 == 0o644
