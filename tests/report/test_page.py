"""A page is escaped and self-contained."""

from pathlib import Path

import pytest

from rheoscope.messages.catalogue import use_language
from rheoscope.messages.message import Message, Verbatim
from rheoscope.report.page import Cell, Page, figure_png
from rheoscope.report.style import new_figure
from tests.report.parts import Parts


def test_text_is_escaped_and_hover_texts_too() -> None:
    html = Page("<b>", "a & b").with_table("<i>", ["<u>"], [[Cell('"x" <script>', 'say "hi" <now>')]]).to_html()
    assert "<script>" not in html
    assert "<b>" not in html.replace("<body>", "")
    assert "&lt;script&gt;" in html
    assert 'title="say &quot;hi&quot; &lt;now&gt;"' in html


def test_a_page_is_immutable() -> None:
    short = Page("T")
    longer = short.with_png("P", figure_png(new_figure(1.0, 1.0)), "a picture")
    assert short.sections == ()
    assert "data:image/png;base64," in longer.to_html()
    assert "http" not in longer.to_html()


def test_a_page_is_rendered_in_the_current_language() -> None:
    with use_language("zh"):
        html = (
            Page(Message("Model"))
            .with_table(Message("Model"), [Cell(Message("Model"))], [[Verbatim("Model")]])
            .to_html()
        )
    assert '<html lang="zh">' in html
    assert "<h1>模型</h1>" in html
    assert html.count("模型") == 4  # title, two headings and the column
    assert "<span>Model</span>" in html  # tokens are never translated


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_page_in_any_language_may_be_replaced(language: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    with use_language(language):
        assert Page("T").save(path)
        assert Page("T").with_section("L", "again").save(path)
    assert "again" in path.read_text(encoding="utf-8")


def test_a_fold_shows_its_heading_and_has_its_content() -> None:
    parts = Parts(Page("T").with_fold("Numbers", "<p>3</p>").to_html())
    assert parts.texts["h2"] == ["Numbers"]
    assert parts.texts["p"][-1] == "3"
    assert ("details", {"class": "fold"}) in parts.elements
