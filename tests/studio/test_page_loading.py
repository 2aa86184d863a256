"""What the page loads: the size of its script, languages on demand, and a graphics context that the browser takes away."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import rheoscope as rs
from rheoscope.studio.session import Session
from tests.studio import test_page
from tests.studio.cases import TEXT, small
from tests.studio.test_notebook import stored_state
from tests.studio.test_page import open_page, wait_for_cloud, wait_until

pytestmark = test_page.pytestmark
browser, studio = test_page.browser, test_page.studio
MAX_SCRIPT_BYTES = 160_000
"""Budget for the JavaScript of the first load, compressed. Above it, load a part on demand or find a smaller one."""
MAX_NOTEBOOK_BYTES = 1_500_000
"""Budget for what ten cells of rs.show add to a notebook."""


def test_the_first_load_is_small_and_languages_load_on_demand(studio: tuple[Session, str], browser: Any) -> None:
    """Scripts arrive compressed, and no other language is among them."""
    with open_page(browser) as (page, errors):
        scripts: dict[str, Any] = {}
        page.on("response", lambda response: scripts.update({response.url.rpartition("/")[2]: response}))
        page.goto(studio[1])
        wait_for_cloud(page)
        loaded = {name: response for name, response in scripts.items() if response.request.resource_type == "script"}
        assert list(loaded) == ["studio.js"]
        assert loaded["studio.js"].headers["content-encoding"] == "gzip"
        assert len(gzip.compress(loaded["studio.js"].body(), 6)) < MAX_SCRIPT_BYTES
        page.locator("button[lang=zh-Hans]").click()
        wait_until(page, lambda: "messages-zh.js" in scripts)
        assert errors == []


def test_ten_notebook_cells_are_small() -> None:
    """Ten clouds of a text, with the one page that they share, as a notebook stores them."""
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    trace = small().trace(TEXT)
    cells = [rs.show(trace, token_strings=small().token_strings) for _ in range(10)]
    assert len(json.dumps(stored_state(cells))) < MAX_NOTEBOOK_BYTES


def saved_picture(page: Any) -> bytes:
    with page.expect_download() as download:
        page.get_by_role("button", name="PNG").click()
    return Path(download.value.path()).read_bytes()


SELECT_WEBGL = "localStorage.setItem('rheoscope renderer', 'webgl')"
"""The page would draw on a 2D canvas, because no graphics card draws WebGL here."""
HAS_WEBGL = "document.querySelector('canvas[data-ready]').getContext('webgl2') !== null"


@pytest.mark.parametrize("is_selected", [False, True])
def test_webgl_without_a_graphics_card_is_used_only_if_it_is_selected(
    is_selected: bool, studio: tuple[Session, str], browser: Any
) -> None:
    with open_page(browser) as (page, errors):
        if is_selected:
            page.add_init_script(SELECT_WEBGL)
        page.goto(studio[1])
        wait_for_cloud(page)
        assert page.evaluate(HAS_WEBGL) is is_selected
        assert errors == []


def test_the_cloud_is_drawn_again_after_the_browser_has_taken_its_context(
    studio: tuple[Session, str], browser: Any
) -> None:
    with open_page(browser) as (page, errors):
        page.add_init_script(SELECT_WEBGL)
        page.goto(f"{studio[1]}#show=trails&text=One+day+the+king+took+the+gold+from+the+bank")
        wait_for_cloud(page)
        canvas = page.locator("canvas[data-ready]")
        wait_until(page, lambda: canvas.evaluate("(canvas) => canvas.width") != 300)  # drawn, after the first paint
        before = saved_picture(page)
        restored = "new Promise((done) => canvas.addEventListener('webglcontextrestored', () => setTimeout(done)))"
        canvas.evaluate(
            f"""async (canvas) => {{
                const context = canvas.getContext('webgl2').getExtension('WEBGL_lose_context')
                const lost = new Promise((done) => canvas.addEventListener('webglcontextlost', () => setTimeout(done)))
                context.loseContext()
                await lost
                const restored = {restored}
                context.restoreContext()
                await restored
            }}"""
        )
        assert saved_picture(page) == before
        assert errors == []


ICON_REQUESTS = "performance.getEntriesByType('resource').filter(({ name }) => name.includes('icon')).length"
COUNT_CANCELLED_FRAMES = """
const cancel = cancelAnimationFrame
window.cancelledFrames = 0
window.cancelAnimationFrame = (frame) => (window.cancelledFrames++, cancel(frame))
"""


def test_the_animation_restarts_at_steps_and_not_in_every_frame(studio: tuple[Session, str], browser: Any) -> None:
    """A restart loses the time since the frame began, so the animation would last longer on a busy machine."""
    with open_page(browser) as (page, errors):
        page.emulate_media(reduced_motion="no-preference")
        page.add_init_script(COUNT_CANCELLED_FRAMES)
        page.goto(f"{studio[1]}#step=0&text=One+day+the+king+took+the+gold+from+the+bank&view=dynamics")
        wait_for_cloud(page)
        last_step = int(page.locator("input.steps").get_attribute("max"))
        before = page.evaluate("cancelledFrames")
        page.locator("button.play").click()
        wait_until(page, lambda: page.locator("input.steps").input_value() == str(last_step))
        page.wait_for_timeout(1000)  # the last half-layer
        assert 0 < page.evaluate("cancelledFrames") - before <= 2 * last_step + 2
        assert page.evaluate(ICON_REQUESTS) == 0  # Chromium requests an icon file again at every change of the link
        assert errors == []
