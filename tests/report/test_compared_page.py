"""Two texts on one page: both stand there, every number beside the other, and the difference."""

import pytest

from rheoscope.report.compared_page import compared_page
from rheoscope.report.layers import columns, said
from rheoscope.report.picture import Line
from rheoscope.report.plot.compared import picture_compared
from tests.report.cases import Parts, model, told

SECOND = "The sky is blue and the sea is green, and all the ships on it are old."


@pytest.fixture(scope="module")
def html() -> str:
    return compared_page(model(), told(), told(SECOND)).html()


def test_both_texts_have_their_tokens_findings_and_pictures(html: str) -> None:
    parts = Parts(html)
    heads = parts.texts["h2"]
    for name in ("text 1", "text 2"):
        assert {f"Findings, {name}", f"Do tokens gather? ({name})", f"The covers ({name})"} <= set(heads)
    assert "Layer by layer, both texts" in heads
    assert parts.count("script") == 1
    assert f"{len(told().trace)} tokens" in html
    assert f"{len(told(SECOND).trace)} tokens" in html


def test_the_table_has_both_and_the_difference(html: str) -> None:
    table = html[html.index("<table") : html.index("</table>")]
    assert Parts(table).count("tr") == 1 + 3 * 6
    rows = table.split("<tr>")[2:]
    column = next(column for column in columns(told().found) if column.title == "moved")
    a, b = (column.value(one.found[column.analysis], 2) for one in (told(), told(SECOND)))
    for row, value in zip(rows[6:9], (a, b, b - a), strict=True):
        assert f"<span>{said(value)}</span>" in row


def test_curves_are_those_of_the_table() -> None:
    drawn = picture_compared(told(), told(SECOND))
    titles = [column.title for column in columns(told().found)]
    assert [panel.title for panel in drawn.panels] == titles
    kappa = drawn.panels[titles.index("κ")]
    named = {mark.name: mark for mark in kappa.marks if isinstance(mark, Line)}
    assert named["text 2"].y == pytest.approx(told(SECOND).found["transport"].kappa.values)
    assert named["text 1, null"].y == pytest.approx(told().found["transport"].kappa_null.values)
    assert named["text 1, null"].style == "dashed"


def test_what_one_text_lacks_is_left_out() -> None:
    short = compared_page(model(), told(), told("a")).html()
    assert "clusters: this needs at least 3 tokens" in short
    assert "Left out (text 2)" in short
