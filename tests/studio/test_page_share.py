"""Share: a picture, an animation and a page in one file, which plays offline and shows the numbers of the live page."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from rheoscope.studio.session import Session
from tests.studio import test_page
from tests.studio.test_page import open_page, tokens, wait_for_cloud, wait_until

pytestmark = test_page.pytestmark
browser, studio = test_page.browser, test_page.studio

TEXT = " ".join(["The keys to the cabinet are on the table and the king keeps them."] * 4)
MAX_PAGE_BYTES, MAX_GIF_BYTES = 1_000_000, 3_000_000


def download(page: Any, kind: str, path: Path) -> Path:
    with page.expect_download(timeout=60_000) as event:
        page.locator(f"dialog [data-share={kind}]").click()
    event.value.save_as(path)
    return path


def shown_numbers(page: Any) -> dict[str, Any]:
    """What the page shows about the text at the last step."""
    last = page.locator("input.steps").get_attribute("max")
    page.locator("input.steps").fill(last)
    bars = page.locator("section[aria-labelledby=next-token] li")
    wait_until(page, lambda: bars.count() == 5)
    return {
        "tokens": tokens(page),
        "bars": bars.all_inner_texts(),
        "shares": page.locator(".cloud .foot").inner_text(),
    }


def story_lines(page: Any) -> set[str]:
    """The lines of the story that have arrived."""
    return set(page.locator("#story-lines li:not(:has(.waiting))").all_inner_texts())


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_in_one_file_plays_offline_and_shows_the_same(
    studio: tuple[Session, str], browser: Any, tmp_path: Path, language: str
) -> None:
    with open_page(browser, accept_downloads=True) as (page, errors):
        page.goto(f"{studio[1]}#language={language}&view=dynamics&text={quote(TEXT)}")
        wait_for_cloud(page)
        wait_until(page, lambda: page.locator(".progress.working").count() == 0)
        live_numbers, live_story = shown_numbers(page), story_lines(page)
        assert live_story
        page.locator("header .share").click()
        file = download(page, "page", tmp_path / "page.html")
        assert errors == []
    assert file.stat().st_size <= MAX_PAGE_BYTES
    with open_page(browser, offline=True) as (page, errors):
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        wait_for_cloud(page)
        wait_until(
            page, lambda: page.locator("#story-lines .waiting").count() < page.locator("#story-lines li").count()
        )
        assert shown_numbers(page) == live_numbers
        assert live_story <= story_lines(page)
        page.locator("input.steps").fill("0")
        page.locator("button.play").click()
        last_step = page.locator("input.steps").get_attribute("max")
        wait_until(page, lambda: page.locator("input.steps").input_value() == last_step)
        assert page.locator("#views").count() == 0
        assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
        assert len([url for url in requests if url.startswith("file:")]) == 1
        assert errors == []


def test_the_page_in_one_file_plays_in_a_sandboxed_frame(
    studio: tuple[Session, str], browser: Any, tmp_path: Path
) -> None:
    """As on the site of the documentation: without rights, and without the tour, which needs the weights of the heads."""
    with open_page(browser, accept_downloads=True) as (page, _):
        page.goto(f"{studio[1]}#view=dynamics&text={quote(TEXT)}")
        wait_for_cloud(page)
        page.locator("header .share").click()
        download(page, "page", tmp_path / "page.html")
    (tmp_path / "site.html").write_text(
        '<iframe src="page.html" sandbox="allow-scripts" width="700" height="600"></iframe>'
    )
    with open_page(browser, offline=True) as (page, errors):
        page.goto((tmp_path / "site.html").as_uri())
        frame = page.frame_locator("iframe")
        frame.locator("canvas[data-ready=yes]").wait_for()
        frame.locator("input.steps").fill("2")
        assert frame.locator("section[aria-labelledby=next-token] li").count() == 5
        assert frame.locator("header .tour, .offer").count() == 0
        assert errors == []


def test_a_picture_and_an_animation_are_rendered_in_the_browser(
    studio: tuple[Session, str], browser: Any, tmp_path: Path
) -> None:
    image = pytest.importorskip("PIL.Image")
    with open_page(browser, accept_downloads=True) as (page, errors):
        page.goto(f"{studio[1]}#view=dynamics&text={quote(TEXT)}")
        wait_for_cloud(page)
        n_steps = int(page.locator("input.steps").get_attribute("max")) + 1
        page.locator("header .share").click()
        with image.open(download(page, "png", tmp_path / "cloud.png")) as picture:
            assert picture.size == (1280, 840)
            assert len(picture.convert("RGB").getcolors(maxcolors=10**6)) > 20
        file = download(page, "gif", tmp_path / "flow.gif")
        assert file.stat().st_size <= MAX_GIF_BYTES
        with image.open(file) as animation:
            assert animation.size == (640, 420)
            assert animation.n_frames >= 6 * (n_steps - 1)
            frames = []
            for k in (0, animation.n_frames // 2, animation.n_frames - 1):
                animation.seek(k)
                frames.append(animation.convert("RGB").tobytes())
            assert len(set(frames)) == 3
        assert errors == []
