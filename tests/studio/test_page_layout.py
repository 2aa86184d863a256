"""No text on the page is cut in mid-word or in mid-number, in any view, at three sizes and in both languages."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from rheoscope.studio.session import Session
from tests.studio import test_page
from tests.studio.test_page import open_page, wait_for_cloud, wait_until

pytestmark = test_page.pytestmark
browser, studio = test_page.browser, test_page.studio

CUT_TEXT = Path(__file__).with_name("cut_text.js").read_text(encoding="utf-8")
SIZES = ((1440, 900), (1280, 720), (390, 844))
VIEWS = (
    "heads",
    "readout",
    "transport",
    "clusters",
    "energy",
    "composition",
    "compare",
    "dynamics",
    "card",
    "atlas",
    "all:operators",
)
LONG_TEXT = "The keys to the cabinet are on the table, and the 1,234.5 keys of the unforgettable cabinetmaker are not."
SELECTION = f"layer=1&head=2&token=3&second=1&compareWith=untrained&text={quote(LONG_TEXT)}"


def wait_for_view(page: Any) -> None:
    page.locator("#panel").wait_for()
    wait_until(page, lambda: page.locator("#panel .waiting").count() == 0)


def open_all_details(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_text_is_cut(studio: tuple[Session, str], browser: Any, language: str) -> None:
    cuts: list[tuple[str, int, list[str]]] = []
    with open_page(browser) as (page, errors):
        for view in VIEWS:
            page.goto(f"{studio[1]}#language={language}&view={view}&{SELECTION}")
            wait_for_cloud(page)
            wait_for_view(page)
            open_all_details(page)
            wait_for_view(page)  # the numbers have unfolded
            for width, height in SIZES:
                page.set_viewport_size({"width": width, "height": height})
                page.evaluate("new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
                cuts += [(view, width, cut) for cut in page.evaluate(CUT_TEXT)]
        assert cuts == []
        assert errors == []


def test_help_and_dialogs_are_not_cut(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser) as (page, errors):
        page.goto(f"{studio[1]}#view=dynamics&text={quote(LONG_TEXT)}")
        wait_for_cloud(page)
        page.keyboard.press("?")
        page.locator("dialog[open]").wait_for()
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            assert page.evaluate(CUT_TEXT) == [], width
        assert errors == []


CUT_EXAMPLES = {
    "cut at an edge": "<div style='overflow:hidden;width:4rem;white-space:nowrap'>a number 123456789</div>",
    "outside the window": "<div style='position:absolute;left:calc(100vw - 2rem);white-space:nowrap'>outside</div>",
    "broken between lines": "<div style='width:2rem;overflow-wrap:anywhere'>unforgettable</div>",
    "cut in a menu": "<select style='width:3rem'><option>a long name of a model</option></select>",
}


@pytest.mark.parametrize("kind", list(CUT_EXAMPLES))
def test_a_cut_text_is_found(browser: Any, kind: str) -> None:
    """The measurement itself finds each kind of cut, and only in the text that is cut."""
    with open_page(browser) as (page, _):
        page.set_content(f"<p>a whole text</p>{CUT_EXAMPLES[kind]}")
        assert {cut[0] for cut in page.evaluate(CUT_TEXT)} == {kind}
