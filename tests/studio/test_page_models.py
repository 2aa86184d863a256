"""The gallery of models, prompts as links, and bad input: one sentence says what to do, and the last valid state stays."""

import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from rheoscope.shapes import RheoscopeError
from rheoscope.studio.startup import bind_socket
from tests.studio import test_page
from tests.studio.cases import import_all_modules, load_small
from tests.studio.test_page import TEXT, open_page, tokens, wait_for_cloud, wait_until
from tests.studio.test_page_state import serve

pytestmark = test_page.pytestmark
browser = test_page.browser
GATE = threading.Event()


def load(source: str | None, **options: Any) -> Any:
    """Loads the small model; "other" waits for the gate and is refused."""
    if source == "other":
        GATE.wait(30)
        raise RheoscopeError("this model is refused")
    return load_small(source, **options)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    import_all_modules()
    listener = bind_socket("127.0.0.1", 0)
    with serve(load, listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"


def open_text(page: Any, address: str, fragment: str = "") -> None:
    page.goto(f"{address}#view=dynamics&text={quote(TEXT)}{fragment}")
    wait_for_cloud(page)


def alerts(page: Any) -> str:
    return " ".join(page.locator("p[role=alert]").all_inner_texts())


def test_the_gallery_opens_a_model_and_names_one_that_is_refused(address: str, browser: Any) -> None:
    GATE.clear()
    with open_page(browser) as (page, _):
        open_text(page, address)
        page.locator("header button.model").click()
        default_entry = page.locator("dialog [data-source=default]")
        default_entry.wait_for()
        assert "exact on" in default_entry.inner_text()
        assert default_entry.get_attribute("aria-current") == "true"
        page.locator("dialog input").fill("oth")
        wait_until(page, lambda: page.locator("dialog [data-source=default]").count() == 0)
        page.locator("dialog [data-source=other]").click()
        page.wait_for_selector(".results.old")  # dimmed, and the loading model is named
        assert "other is selected" in page.locator(".old-results").inner_text()
        wait_until(page, lambda: "Opening other" in page.locator(".progress").inner_text())
        GATE.set()
        page.wait_for_selector(".results.old", state="detached")
        wait_until(page, lambda: "This model is refused" in alerts(page))
        assert "The page shows what could be opened" in alerts(page)
        wait_until(page, lambda: "".join(tokens(page)).endswith(TEXT))

        page.locator("header button.model").click()
        refused = page.locator("dialog [data-source=other] [data-status=refused]")
        wait_until(page, lambda: "this model is refused" in refused.inner_text())
        page.locator("dialog input").fill("no/such-model")
        page.keyboard.press("Enter")
        wait_until(page, lambda: "may not open the model 'no/such-model'" in alerts(page))
        assert "".join(tokens(page)).endswith(TEXT)


def test_prompts_are_links_with_what_to_look_for(address: str, browser: Any) -> None:
    with open_page(browser) as (page, errors):
        open_text(page, address, "&language=zh")
        page.locator(".prompts summary").click()
        links = page.locator(".prompts a")
        assert links.count() >= 4
        for link in links.all():
            assert "language=zh" in link.get_attribute("href")
            assert link.locator("span").inner_text()
        links.nth(3).click()
        wait_until(page, lambda: "cabinet" in "".join(tokens(page)) and "view=readout" in page.url)
        assert "language=zh" in page.url
        assert errors == []


BAD_LINKS = {
    "model=nonsense": "may not open the model 'nonsense'",
    "edits=99.0.M.symmetric": "There is no layer 99",
    "window=7": "The text fits into one window",
    "step=x": "step=x, which is not a whole number",
    "axes=nonsense": "nonsense",
}


@pytest.mark.parametrize("fragment", list(BAD_LINKS))
def test_a_link_that_cannot_be_read_shows_what_it_can(address: str, browser: Any, fragment: str) -> None:
    """On a first visit and later, the cloud of a valid text is there, and nothing is dimmed."""
    with open_page(browser) as (page, _):
        open_text(page, address, f"&{fragment}")
        wait_until(page, lambda: BAD_LINKS[fragment] in alerts(page))
        assert page.locator(".results.old").count() == 0

        open_text(page, address)
        page.evaluate("(fragment) => (location.hash += `&${fragment}`)", fragment)
        wait_until(page, lambda: BAD_LINKS[fragment] in alerts(page))
        wait_until(page, lambda: "".join(tokens(page)).endswith(TEXT))
        assert page.locator(".results.old").count() == 0
        page.locator("p[role=alert] > button").click()
        assert alerts(page) == ""


def test_an_empty_and_a_too_long_text_are_not_sent(address: str, browser: Any) -> None:
    with open_page(browser) as (page, errors):
        open_text(page, address)
        page.keyboard.press("/")
        for text, expected in (("  ", "enter at least one word"), ("word " * 20_000, "shorten it")):
            page.locator("textarea").fill(text)
            page.keyboard.press("Enter")
            assert expected in page.locator("#text-fault").inner_text()
            assert page.locator("form button[type=submit]").first.is_disabled()
        page.keyboard.press("Escape")
        assert "".join(tokens(page)).endswith(TEXT)
        assert errors == []
