"""The tour: offered on the first visit, walked by keyboard alone, with a link for every step."""

import re
from typing import Any
from urllib.parse import quote

import pytest

from rheoscope.studio.session import Session
from tests.studio import test_page
from tests.studio.cases import TEXT, small
from tests.studio.test_page import AXE, open_page, wait_for_cloud, wait_for_url, wait_until

pytestmark = test_page.pytestmark
browser, studio = test_page.browser, test_page.studio

VIEW = f"field=scores.centred&colour=token&text={quote(TEXT)}"


def press_tab_until(page: Any, name: str) -> None:
    """Move the focus with the tab key to the control whose text is `name`."""
    for _ in range(40):
        if page.evaluate("document.activeElement.textContent.trim()") == name:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"40 tabs do not reach {name!r}")


def link_value(page: Any, name: str) -> str | None:
    match = re.search(rf"[#&]{name}=([^&]*)", page.url)
    return match and match[1]


def test_the_tour_is_walked_by_keyboard_alone(studio: tuple[Session, str], browser: Any) -> None:
    last_token, last_step = len(small().trace(TEXT)) - 1, len(small().trace(TEXT).steps) - 1
    with open_page(browser) as (page, errors):
        page.goto(f"{studio[1]}#{VIEW}")
        wait_for_cloud(page)
        press_tab_until(page, "Take the tour: 5 steps")
        page.keyboard.press("Enter")
        wait_for_url(page, "tour=1")
        titles = []
        for number in (1, 2, 3, 4):
            wait_for_url(page, f"tour={number}")
            titles.append(page.locator("#tour-title").inner_text())
            press_tab_until(page, "Next")
            if number == 2:
                wait_until(page, lambda: link_value(page, "token") == str(last_token))
                assert link_value(page, "head") is not None
            page.keyboard.press("Enter")
        wait_for_url(page, "tour=5")
        wait_until(page, lambda: link_value(page, "step") == str(last_step))
        titles.append(page.locator("#tour-title").inner_text())
        assert len(set(titles)) == 5

        go = page.locator("section.tour .go")
        wait_until(page, lambda: go.inner_text().startswith("Silence L"))
        assert page.evaluate("document.activeElement.classList.contains('go')")  # the focus stays on the button
        page.keyboard.press("Enter")
        wait_for_url(page, "edits=")
        wait_until(page, lambda: go.inner_text() == "Done")
        page.wait_for_selector(".moved")
        page.keyboard.press("Enter")
        page.wait_for_selector("section.tour", state="detached")
        assert link_value(page, "tour") is None

        page.reload()
        wait_for_cloud(page)
        assert page.locator(".offer").count() == 0  # it is offered once
        assert errors == []


def test_every_step_has_a_link_and_escape_ends_the_tour(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser, bypass_csp=True) as (page, errors):
        page.goto(f"{studio[1]}#{VIEW}&tour=2")
        page.locator("#tour-title", has_text="two operators").wait_for()
        wait_until(page, lambda: link_value(page, "layer") is not None)
        page.locator("section.tour nav a").nth(3).click()
        page.locator("#tour-title", has_text="prediction").wait_for()
        wait_until(page, lambda: link_value(page, "layer") is None)
        assert link_value(page, "text") is not None
        if not AXE.exists():
            pytest.skip("axe-core is not installed; type make studio")
        page.add_script_tag(path=str(AXE))
        violations = page.evaluate("axe.run('section.tour').then((report) => report.violations)")
        assert [violation["id"] for violation in violations] == []
        page.keyboard.press("Escape")
        page.wait_for_selector("section.tour", state="detached")
        assert errors == []
