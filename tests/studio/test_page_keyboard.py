"""The page by keyboard and with a screen reader: tab stops, arrow keys, the text alternative of the cloud, and axe in every view."""

from collections.abc import Iterator
from typing import Any

import pytest

from rheoscope.studio.session import Session
from tests.studio import test_page
from tests.studio.test_page import AXE, TEXT, open_page, wait_for_cloud, wait_for_url, wait_until
from tests.studio.test_page_layout import VIEWS, open_all_details, wait_for_view

pytestmark = test_page.pytestmark
browser, studio = test_page.browser, test_page.studio
FOCUSED = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
ADDRESS = f"view=dynamics&layer=0&head=1&token=2&second=1&compareWith=untrained&text={TEXT.replace(' ', '+')}"


@pytest.fixture
def page(studio: tuple[Session, str], browser: Any) -> Iterator[Any]:
    with open_page(browser, bypass_csp=True) as (page, errors):
        page.goto(f"{studio[1]}#{ADDRESS}")
        wait_for_cloud(page)
        yield page
        assert errors == []


def tab_until(page: Any, label: str, limit: int) -> int:
    """Press tab until the element of a label has the focus. Returns the number of presses."""
    for presses in range(1, limit + 1):
        page.keyboard.press("Tab")
        if page.evaluate(FOCUSED).strip() == label:
            return presses
    raise AssertionError(f"{label} is not within {limit} tabs")


def test_play_is_within_ten_tabs_and_the_skip_link_moves_the_focus(page: Any) -> None:
    tab_until(page, "Play", 10)
    page.reload()
    wait_for_cloud(page)
    tab_until(page, "Skip to the point cloud", 1)
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "cloud"


def test_the_token_strip_and_the_tools_are_one_tab_stop_each(page: Any) -> None:
    for selector in ("section.strip ol button", "header [role=toolbar] button"):
        stops = page.locator(selector).evaluate_all("(all) => all.filter((button) => button.tabIndex === 0).length")
        assert stops == 1, selector
    tokens = page.locator("section.strip ol button")
    tokens.first.focus()
    step = page.locator("input.steps").input_value()
    for key, position in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", tokens.count() - 1)):
        page.keyboard.press(key)
        assert tokens.nth(position).evaluate("(button) => button === document.activeElement && button.tabIndex === 0")
    assert page.locator("input.steps").input_value() == step
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    wait_for_url(page, "token=0")


def test_the_story_is_the_text_alternative_of_the_cloud(page: Any) -> None:
    canvas = page.locator("canvas[data-ready]")
    wait_until(page, lambda: canvas.get_attribute("aria-describedby") == "story-lines")
    assert canvas.get_attribute("role") == "img"
    assert "Next token" in page.locator("#story-lines").inner_text()


def violations(page: Any, area: str) -> list[tuple[str, list[Any]]]:
    report = page.evaluate("(area) => axe.run(area).then((report) => report.violations)", area)
    return [(violation["id"], [node["target"] for node in violation["nodes"]][:3]) for violation in report]


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed; type make studio")
@pytest.mark.parametrize("language", ["en", "zh"])
def test_axe_finds_no_violation_in_any_view(page: Any, language: str) -> None:
    page.add_script_tag(path=str(AXE))
    for theme in ("light", "dark"):
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        assert violations(page, "body") == [], theme
        for view in VIEWS:
            page.evaluate(
                "(hash) => (location.hash = hash)", f"language={language}&{ADDRESS.replace('dynamics', view)}"
            )
            wait_for_view(page)
            open_all_details(page)
            assert violations(page, "#views") == [], (view, theme)
        page.locator("header .theme").click()


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed; type make studio")
def test_axe_finds_no_violation_in_dialogs(page: Any) -> None:
    page.add_script_tag(path=str(AXE))
    page.locator("header button.model").click()
    page.locator("dialog li").first.wait_for()
    assert violations(page, "dialog") == []
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.locator("dialog[open]").wait_for()
    assert violations(page, "dialog") == []
