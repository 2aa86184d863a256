"""The page on a phone: what lies below the cloud can be tapped, generated words are whole, and tables have no empty names."""

from typing import Any
from urllib.parse import quote

from rheoscope.studio.session import Session
from tests.studio import test_page
from tests.studio.cases import TEXT
from tests.studio.test_page import open_page, wait_for_cloud, wait_until
from tests.studio.test_page_layout import CUT_TEXT, wait_for_view

pytestmark = test_page.pytestmark
browser, studio = test_page.browser, test_page.studio

PHONE = {"width": 390, "height": 844}
COVERED = """(selector) => [...document.querySelectorAll(selector)].filter((button) => {
  const box = button.getBoundingClientRect()
  return !button.contains(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2))
}).map((button) => button.textContent)"""
"""The texts of the elements whose centre is covered by another element or lies outside the window."""


def test_before_and_after_an_edit_can_be_tapped_below_the_cloud(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser) as (page, errors):
        page.set_viewport_size(PHONE)
        page.goto(f"{studio[1]}#text={quote(TEXT)}&step=6&layer=0&head=0&edits=0.0.both.ablate")
        wait_for_cloud(page)
        page.locator("[data-legend=ghost]").wait_for()
        sides = ".cloud [role=group] button"
        page.locator(sides).first.wait_for()
        assert page.locator(sides).count() == 3
        page.locator(".cloud").scroll_into_view_if_needed()
        assert page.evaluate(COVERED, sides) == []
        page.locator(sides, has_text="difference").click()
        wait_until(page, lambda: "side=difference" in page.url)
        assert errors == []


def test_generated_words_and_the_names_of_bars_are_not_cut(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser) as (page, errors):
        page.set_viewport_size(PHONE)
        page.goto(f"{studio[1]}#view=generation&text={quote(TEXT)}")
        wait_for_cloud(page)
        page.locator("#panel input[type=number]").first.fill("6")
        page.locator("#panel button.go").click()
        wait_until(page, lambda: page.locator("#panel button.token").count() == 6)
        page.locator("#panel button.go").wait_for()  # generation has ended
        page.get_by_text("heads, from the prompt").wait_for()  # the whole answer is attributed
        assert page.evaluate(CUT_TEXT) == []
        page.locator("#panel button.token").nth(1).click()
        page.get_by_role("heading", name="Logit lens").wait_for()
        assert page.evaluate(CUT_TEXT) == []
        assert errors == []


def test_rows_of_a_group_have_no_name_without_a_value(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser) as (page, errors):
        page.set_viewport_size(PHONE)
        page.goto(f"{studio[1]}#view=all:head_types&text={quote(TEXT)}")
        wait_for_cloud(page)
        wait_for_view(page)
        page.locator("#panel details summary", has_text="Numbers").click()
        page.locator("#panel td").first.wait_for()
        first_cells = page.locator("#panel td:first-child").evaluate_all(
            "(cells) => cells.map((cell) => [cell.textContent.trim(), cell.dataset.name])"
        )
        assert {name for text, name in first_cells if text} == {"type"}
        assert {name for text, name in first_cells if not text} == {""}
        assert errors == []


def test_the_legends_of_all_layers_end_above_the_scrubber(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser) as (page, errors):
        page.set_viewport_size(PHONE)
        page.goto(
            f"{studio[1]}#text={quote(TEXT)}&step=4&layer=1&head=2&token=5&show=trails,arcs,moves,coupling&edits=1.2.both.ablate"
        )
        wait_for_cloud(page)
        for legend in ("moves", "coupling"):
            page.locator(f"[data-legend={legend}]").wait_for()
        foot, controls = (page.locator(part).bounding_box() for part in (".cloud .foot", ".controls"))
        assert foot is not None
        assert controls is not None
        assert foot["y"] + foot["height"] <= controls["y"] + 1
        page.locator("[data-legend=coupling]").scroll_into_view_if_needed()
        assert page.evaluate(COVERED, "[data-legend=coupling]") == []
        assert page.evaluate(CUT_TEXT) == []
        assert errors == []
