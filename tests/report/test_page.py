"""One self-contained page: escaped, no address outside itself, written whole or not at all."""

from pathlib import Path

import pytest

from rheoscope.report.files import written
from rheoscope.report.page import Cell, Page, png
from rheoscope.report.style import new_figure
from rheoscope.shapes import RheoscopeError


def test_text_is_escaped_and_hover_texts_too() -> None:
    html = Page("<b>", "a & b").table("<i>", ["<u>"], [[Cell('"x" <script>', 'say "hi" <now>')]]).html()
    assert "<script>" not in html
    assert "<b>" not in html.replace("<body>", "")
    assert "&lt;script&gt;" in html
    assert 'title="say &quot;hi&quot; &lt;now&gt;"' in html


def test_a_page_grows_by_values() -> None:
    short = Page("T")
    longer = short.picture("P", png(new_figure(1.0, 1.0)), "a picture")
    assert short.parts == ()
    assert "data:image/png;base64," in longer.html()
    assert "http" not in longer.html()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.html"
    target.write_text("old")

    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        written(target, fail)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_written_says_whether_something_was_replaced(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.html"
    assert written(target, lambda path: path.write_text("1")).startswith("wrote")
    assert written(target, lambda path: path.write_text("2")).startswith("replaced")


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(RheoscopeError, match="is a directory"):
        written(tmp_path, lambda path: path.write_text(""))
