"""Edits in a real browser: a head is silenced in one click, the cost is printed, and a key undoes it."""

from typing import Any
from urllib.parse import quote

from rheoscope.studio.edit_cost import edit_cost
from rheoscope.studio.edited_model import with_edits
from rheoscope.studio.edits import Edit
from rheoscope.studio.session import Session
from tests.studio import test_page
from tests.studio.cases import TEXT, small
from tests.studio.test_page import open_page, wait_for_cloud, wait_for_url, wait_until

pytestmark = test_page.pytestmark
browser, studio = test_page.browser, test_page.studio


def test_a_head_is_silenced_in_one_click_and_restored_by_a_key(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser) as (page, errors):
        page.goto(f"{studio[1]}#field=scores.centred&colour=token&step=6&text={quote(TEXT)}")
        wait_for_cloud(page)
        page.locator("canvas.heads").hover(position={"x": 50, "y": 30})
        page.get_by_role("button", name="Silence L0.H0").click()
        page.wait_for_selector(".cost")
        wait_for_url(page, "edits=0.0.both.ablate")

        cost = edit_cost(small().trace(TEXT), with_edits(small(), [Edit(0, 0, "ablate", "both")]).trace(TEXT))
        assert (
            f"({cost.loss_before:.3f} → {cost.loss_after:.3f}, KL {cost.kl:.3f})" in page.locator(".cost").inner_text()
        )
        assert "The next token" in page.locator(".moved").inner_text()
        bars = page.locator("section[aria-labelledby=next-token] li")
        wait_until(page, lambda: bars.locator(".bar i").count() == bars.count())  # also for tokens that were not listed
        page.locator("[data-legend=ghost]").wait_for()
        assert page.locator(".results.old").count() == 0

        page.keyboard.press("z")
        page.wait_for_selector(".chip", state="detached")
        wait_until(page, lambda: "edits=" not in page.url)
        page.wait_for_selector("[data-legend=ghost]", state="detached")
        assert errors == []


def test_a_head_is_silenced_by_keyboard_alone(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser) as (page, errors):
        page.goto(f"{studio[1]}#field=scores.centred&colour=token&text={quote(TEXT)}")
        wait_for_cloud(page)
        for key in ("ArrowDown", "ArrowDown", "x"):
            page.keyboard.press(key)
        wait_for_url(page, "edits=0.1.both.ablate")
        page.wait_for_selector(".moved")
        page.keyboard.press("x")
        page.wait_for_selector(".chip", state="detached")
        page.keyboard.press("z")  # undoes the restoration
        wait_for_url(page, "edits=0.1.both.ablate")
        assert errors == []


def test_a_head_is_silenced_with_one_tap_on_a_phone(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser, has_touch=True, is_mobile=True) as (page, errors):
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(f"{studio[1]}#field=scores.centred&colour=token&text={quote(TEXT)}")
        wait_for_cloud(page)
        page.locator("canvas.heads").tap(position={"x": 34 + 52 + 38, "y": 22 + 15})  # the button of L0.H1
        wait_for_url(page, "edits=0.1.both.ablate")
        page.locator("canvas.heads").tap(position={"x": 34 + 10, "y": 22 + 30 + 15})
        wait_for_url(page, "layer=1&head=0")
        page.get_by_role("button", name="Silence L1.H0").wait_for()
        assert "1.0.both.ablate" not in page.url
        assert errors == []


def test_a_silenced_head_says_why_its_maps_are_empty(studio: tuple[Session, str], browser: Any) -> None:
    with open_page(browser) as (page, errors):
        page.goto(f"{studio[1]}#layer=0&head=0&edits=0.0.both.ablate&text={quote(TEXT)}")
        wait_for_cloud(page)
        page.get_by_text("The edits do not change the attention weights of this head.").wait_for()
        page.get_by_text("No score of this head changes the loss").wait_for()
        assert page.locator("#panel figure canvas").count() == 2  # the weights, and the images of the head
        assert errors == []
