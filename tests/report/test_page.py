"""One self-contained page: escaped, no address outside itself."""

from rheoscope.report.page import Cell, Page, figure_png
from rheoscope.report.style import new_figure


def test_text_is_escaped_and_hover_texts_too() -> None:
    html = Page("<b>", "a & b").with_table("<i>", ["<u>"], [[Cell('"x" <script>', 'say "hi" <now>')]]).to_html()
    assert "<script>" not in html
    assert "<b>" not in html.replace("<body>", "")
    assert "&lt;script&gt;" in html
    assert 'title="say &quot;hi&quot; &lt;now&gt;"' in html


def test_a_page_grows_by_values() -> None:
    short = Page("T")
    longer = short.with_png("P", figure_png(new_figure(1.0, 1.0)), "a picture")
    assert short.sections == ()
    assert "data:image/png;base64," in longer.to_html()
    assert "http" not in longer.to_html()
