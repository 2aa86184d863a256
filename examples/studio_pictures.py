"""Screenshots of the studio for docs/guide/studio.md, light and dark, in a headless Chromium.

Run `make studio`, then `make pictures`. Each file has at most 150 kB.
"""

import io
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from rheoscope.studio.safety import AccessRules
from rheoscope.studio.server import create_app
from rheoscope.studio.startup import DEFAULT_OPTIONS, bind_socket, page_address, start_session
from rheoscope.studio.stored_example import EXAMPLE_FOLDER, PAGE_FOLDER, load_example

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "guide" / "figures"
MAX_BYTES = 150_000
WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
KING = "The king kept his gold in the bank, and the children played on the bank of the river."
VIEWS: dict[str, tuple[dict[str, int], dict[str, str], str]] = {
    "studio": (WIDE, {"step": "8", "colour": "cluster"}, ""),
    "studio-head": (WIDE, {"text": KING, "step": "6", "layer": "2", "head": "1", "edits": "2.1.M.symmetric"}, "#views"),
    "studio-readout": (WIDE, {"text": KING, "view": "readout", "token": "4"}, "#views"),
    "studio-compare": (WIDE, {"view": "compare", "compareWith": "untrained", "step": "8"}, "#views"),
    "studio-phone": (NARROW, {"step": "8"}, ""),
}
"""Name of a screenshot → size of the window, parameters of the link, and the element to scroll to."""


@contextmanager
def serving() -> Iterator[str]:
    """The address of a studio that runs inside the `with` block."""
    session, server_socket = start_session(DEFAULT_OPTIONS), bind_socket("127.0.0.1", 0)
    app = create_app(session, AccessRules(), PAGE_FOLDER, load_example(PAGE_FOLDER / EXAMPLE_FOLDER))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [server_socket]})
    thread.start()
    try:
        yield page_address("127.0.0.1", server_socket.getsockname()[1], None)
    finally:
        server.should_exit = True
        thread.join()
        session.close()


def take_screenshot(page: Page, base: str, link: dict[str, str], place: str) -> bytes:
    """A screenshot of a view once it has finished loading."""
    page.goto(f"{base}#{urlencode(link)}")
    page.wait_for_selector("canvas[data-ready=yes]", timeout=60_000)
    page.locator(".progress.working").wait_for(state="detached", timeout=300_000)
    if "edits" in link:
        page.wait_for_selector(".moved", timeout=60_000)
    if not shutil.which("fc-list") or not subprocess.check_output(["fc-list", ":lang=zh"]):
        page.add_style_tag(content="button[lang=zh-Hans] { display: none }")  # no installed font has Chinese characters
    page.wait_for_load_state("networkidle", timeout=300_000)
    wait_until_still(page)
    if place:  # now everything above it has its height
        page.locator(place).evaluate("(element) => element.scrollIntoView()")
        page.wait_for_load_state("networkidle", timeout=300_000)
        wait_until_still(page)
    return page.screenshot()


def wait_until_still(page: Page) -> None:
    """Wait until two screenshots, half a second apart, are equal."""
    before = b""
    for _ in range(60):
        page.wait_for_timeout(500)
        current = page.screenshot()
        if current == before:
            return
        before = current


def save(name: str, picture: bytes) -> None:
    """Save as WebP, at the highest quality that fits into `MAX_BYTES`."""
    for quality in (85, 70, 55, 40):
        file = io.BytesIO()
        Image.open(io.BytesIO(picture)).convert("RGB").save(file, "webp", quality=quality, method=6)
        if file.tell() <= MAX_BYTES:
            break
    (FIGURES / f"{name}.webp").write_bytes(file.getvalue())
    print(f"{name}.webp {file.tell() / 1000:.0f} kB")


def main() -> None:
    if not (PAGE_FOLDER / EXAMPLE_FOLDER).is_dir():
        sys.exit("the studio's page is not built; type make studio")
    chromium = os.environ.get("RHEOSCOPE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    flags = ["--no-sandbox"]
    with serving() as base, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=flags)
        for name, (size, link, place) in VIEWS.items():
            for theme in ("light", "dark"):
                page_options: dict[str, Any] = {"color_scheme": theme, "reduced_motion": "reduce", "locale": "en-GB"}
                page = browser.new_page(viewport=size, bypass_csp=True, **page_options)
                save(f"{name}-{theme}", take_screenshot(page, base, link, place))
                page.close()
        browser.close()


if __name__ == "__main__":
    main()
