"""Test the studio's page in Chromium. `make browser` calls this after `make studio`. No test is skipped.

    python .ci/browser.py [ARGUMENT OF PYTEST ...]

The browser is RHEOSCOPE_CHROMIUM, else the system's Chromium, else the one that Playwright downloads.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("tests/studio/test_page.py", "tests/studio/test_page_state.py")
PAGE, AXE = "src/rheoscope/studio/static/index.html", "frontend/node_modules/axe-core/axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome")


class BrowserError(Exception):
    """An error that is printed as one line."""


def main(arguments: list[str]) -> int:
    try:
        check_built(ROOT)
        browser = chromium(os.environ, shutil.which, downloaded)
    except BrowserError as error:
        print(f"browser: {error}", file=sys.stderr)
        return 1
    print(f"browser: {browser}", flush=True)
    command = [sys.executable, "-m", "pytest", *TESTS, *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"RHEOSCOPE_CHROMIUM": browser}, check=False).returncode


def check_built(root: Path) -> None:
    for file in (PAGE, AXE):
        if not (root / file).is_file():
            raise BrowserError(f"{file} is missing, so the page cannot be tested; type make studio")


def chromium(
    environment: Mapping[str, str], find_program: Callable[[str], str | None], download: Callable[[], str | None]
) -> str:
    """The path of Chromium: the configured one, the system's, or a downloaded one."""
    named = environment.get("RHEOSCOPE_CHROMIUM")
    path = named or next(filter(None, map(find_program, NAMES)), None) or download()
    if path is None:
        raise BrowserError(
            "Chromium is not installed and cannot be downloaded, so the page was not tested; on Debian and Ubuntu, "
            "type apt install chromium, or set RHEOSCOPE_CHROMIUM=/path/to/chromium"
        )
    return path


def downloaded() -> str | None:
    """The path of Playwright's Chromium, downloaded if necessary. None if the download fails."""
    from playwright.sync_api import sync_playwright

    print("browser: Chromium is not installed; Playwright downloads it", flush=True)
    if subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False).returncode:
        return None
    with sync_playwright() as driver:
        return driver.chromium.executable_path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
