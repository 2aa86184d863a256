"""Look at the studio's page in a real browser. Called by `make browser`, after `make studio`; here nothing is skipped.

    python .ci/browser.py [ARGUMENT OF PYTEST ...]

The browser is the one that RHEOSCOPE_CHROMIUM names, else the system's Chromium, else the one that Playwright downloads.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE, AXE = "src/rheoscope/studio/static/index.html", "frontend/node_modules/axe-core/axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome")


class BrowserError(Exception):
    """A failure that one line explains."""


def main(arguments: list[str]) -> int:
    try:
        check_built(ROOT)
        browser = chromium(os.environ, shutil.which, downloaded)
    except BrowserError as error:
        print(f"browser: {error}", file=sys.stderr)
        return 1
    print(f"browser: {browser}", flush=True)
    command = [sys.executable, "-m", "pytest", "tests/studio/test_page.py", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"RHEOSCOPE_CHROMIUM": browser}, check=False).returncode


def check_built(root: Path) -> None:
    for file in (PAGE, AXE):
        if not (root / file).is_file():
            raise BrowserError(f"{file} is missing, so there is no page to look at; type make studio")


def chromium(
    environment: Mapping[str, str], which: Callable[[str], str | None], download: Callable[[], str | None]
) -> str:
    """The browser to look with: the one that is named, the system's, or the one that can be downloaded."""
    named = environment.get("RHEOSCOPE_CHROMIUM")
    found = named or next(filter(None, map(which, NAMES)), None) or download()
    if found is None:
        raise BrowserError(
            "no Chromium is here and none can be downloaded, so nobody looked at the page; on Debian and Ubuntu: "
            "apt install chromium; or name one: RHEOSCOPE_CHROMIUM=/path/to/chromium"
        )
    return found


def downloaded() -> str | None:
    """Playwright's own Chromium, downloaded where it is not there yet; None where that fails."""
    from playwright.sync_api import sync_playwright

    print("browser: no Chromium on this system; Playwright downloads its own", flush=True)
    if subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False).returncode:
        return None
    with sync_playwright() as driver:
        return driver.chromium.executable_path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
