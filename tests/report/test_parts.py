"""`Parts` agrees with Python's HTML parser and refuses malformed HTML."""

from html.parser import HTMLParser

import pytest

from rheoscope.report.report_page import report_page
from rheoscope.report.report_plans import REPORTS
from tests.report.cases import flow_results
from tests.report.parts import EMPTY, Parts


class Slow(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


SMALL = """<!doctype html>
<p Class="a b" hidden id=x-1>1 &lt; 2 &amp; <b>3</b><br><path viewBox="0 &quot;1&quot;"/><!-- <i> -->4</p>
<script>if (1 < 2) "</p>"</script><style>a > b {}</style>end"""


@pytest.mark.parametrize("page", ["a small one", "a report"])
def test_parts_agree_with_a_full_html_parser(page: str) -> None:
    html = SMALL if page == "a small one" else report_page(REPORTS["flow"], flow_results()).to_html()
    parser, due = Parts(html), Slow(html)
    assert (parser.elements, parser.texts, parser.open) == (due.elements, due.texts, due.open)
    assert parser.count("p", "b") == sum(
        tag == "p" and "b" in (has.get("class") or "").split() for tag, has in due.elements
    )


@pytest.mark.parametrize("html", ["<p>1 < 2</p>", "<p a='b'></p>", '<p a="b></p>', "<p", "<p><b></p></b>", "</p>"])
def test_malformed_html_is_refused(html: str) -> None:
    with pytest.raises(AssertionError):
        Parts(html)
