"""Datasets and pages that the tests of reports share."""

from functools import cache
from html.parser import HTMLParser
from typing import Any

import rheoscope as rs
from rheoscope.report.answers import Answers, answers
from rheoscope.report.draw.inline import figures

TEXT = "The keys to the cabinet are on the table in the hall, and the old cabinet is in the old hall."
FLOW = ("readout", "trajectory", "transport", "kept", "clusters", "purity", "massive", "energy", "scores")
COVERS = ("agreement", "torn", "head_types")
"""What the main report shows of the covers."""


@cache
def model() -> Any:
    return rs.load()


@cache
def told(text: str = TEXT) -> Answers:
    return answers(model(), model().trace(text))


class Parts(HTMLParser):
    """What a browser would find: elements with their attributes, and the text inside each kind."""

    EMPTY = ("meta", "img", "br", "link")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def count(self, tag: str, kind: str | None = None) -> int:
        return sum(
            name == tag and (kind is None or kind in (attrs.get("class") or "").split())
            for name, attrs in self.elements
        )


def by_three_hands(picture: Any, dataset: Any) -> None:
    """Every panel is drawn on paper, in a notebook and on a page."""
    paper, notebook = rs.plot(dataset), rs.interactive(dataset)
    assert [axes.get_title("left") for axes in paper.axes] == [panel.title for panel in picture.panels]
    assert len(notebook.data) == sum(len(panel.marks) for panel in picture.panels)
    assert Parts(figures(picture)).count("svg") == len(picture.panels)
    paper.canvas.draw()
