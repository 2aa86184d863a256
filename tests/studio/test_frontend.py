"""The page's own tests, where node is; and the browser that CI looks with, which it finds or says that there is none."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FRONTEND = ROOT / "frontend"
ENVIRONMENT = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}
"""Node may be the system's or that of PyPI, which lies beside Python."""


@pytest.mark.skipif(not (FRONTEND / "node_modules").is_dir(), reason="the page's parts are not here; type make page")
def test_the_page_passes_its_own_tests() -> None:
    npx = shutil.which("npx", path=ENVIRONMENT["PATH"])
    if npx is None:
        pytest.skip("no node here; the page's own tests were not run")
    ran = subprocess.run(
        [npx, "vitest", "run"], cwd=FRONTEND, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "passed" in ran.stdout


@pytest.fixture
def ci() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci" / "browser.py"))


def test_a_browser_is_named_or_the_systems_or_downloaded(ci: dict[str, Any]) -> None:
    asked = []

    def download() -> str:
        asked.append("download")
        return "/own"

    assert ci["chromium"]({"RHEOSCOPE_CHROMIUM": "/named"}, lambda name: "/system", download) == "/named"
    assert (
        ci["chromium"]({}, lambda name: "/bin/" + name if name == "chromium-browser" else None, download)
        == "/bin/chromium-browser"
    )
    assert asked == []
    assert ci["chromium"]({}, lambda name: None, download) == "/own"


def test_without_a_browser_or_a_page_one_line_says_so(ci: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        ci["BrowserError"], match=r"Chromium is not installed and cannot be downloaded.*apt install chromium"
    ) as told:
        ci["chromium"]({}, lambda name: None, lambda: None)
    assert "\n" not in str(told.value)
    with pytest.raises(ci["BrowserError"], match=r"index.html is missing.*type make studio"):
        ci["check_built"](tmp_path)
