"""Test the studio's page in Chromium. `make browser` calls this after `make studio`. No test is skipped.

    python .ci/browser.py [ARGUMENT OF PYTEST ...]

The browser is RHEOSCOPE_CHROMIUM, else the system's Chromium, else Debian's package (installed if the user is root), else the one
that Playwright downloads.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = sorted(file.relative_to(ROOT).as_posix() for file in (ROOT / "tests" / "studio").glob("test_page*.py"))
PAGE, AXE = "src/rheoscope/studio/static/index.html", "frontend/node_modules/axe-core/axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome")


class BrowserError(Exception):
    """An error that is printed as one line."""


def main(arguments: list[str]) -> int:
    try:
        check_built(ROOT)
        browser = chromium(os.environ, shutil.which, (install_package, download_browser))
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
    environment: Mapping[str, str],
    find_program: Callable[[str], str | None],
    installers: Iterable[Callable[[], str | None]],
) -> str:
    """The path of Chromium: the configured one, the system's, or the first that an installer provides."""
    path = environment.get("RHEOSCOPE_CHROMIUM") or system_browser(find_program)
    path = path or next(filter(None, (install() for install in installers)), None)
    if path is None:
        raise BrowserError(
            "Chromium is not installed and cannot be downloaded, so the page was not tested; on Debian and Ubuntu, "
            "type apt install chromium, or set RHEOSCOPE_CHROMIUM=/path/to/chromium"
        )
    return path


def system_browser(find_program: Callable[[str], str | None]) -> str | None:
    return next(filter(None, map(find_program, NAMES)), None)


def install_package() -> str | None:
    """The path of Debian's Chromium, installed with apt-get. None for users without rights, and if the installation fails."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return None
    print("browser: Chromium is not installed; apt-get installs it", flush=True)
    for arguments in (("update",), ("install", "-y", "--no-install-recommends", "chromium")):
        command = ["apt-get", "-qq", *arguments]
        if subprocess.run(command, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, check=False).returncode:
            return None
    return system_browser(shutil.which)


def download_browser() -> str | None:
    """The path of Playwright's Chromium, downloaded if necessary. None if the download fails."""
    from playwright.sync_api import sync_playwright

    print("browser: Playwright downloads Chromium", flush=True)
    if subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False).returncode:
        return None
    with sync_playwright() as driver:
        return driver.chromium.executable_path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
