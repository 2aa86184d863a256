"""The tests of the frontend (if node is installed), and the choice of a browser in CI."""

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
"""Node may be installed system-wide or from PyPI, next to Python."""


@pytest.mark.skipif(
    not (FRONTEND / "node_modules").is_dir(), reason="the packages of the frontend are not installed; type make page"
)
def test_the_frontend_tests_pass() -> None:
    npx = shutil.which("npx", path=ENVIRONMENT["PATH"])
    if npx is None:
        pytest.skip("node is not installed; the frontend tests were not run")
    process = subprocess.run(
        [npx, "vitest", "run"], cwd=FRONTEND, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "passed" in process.stdout


@pytest.mark.skipif(
    not (FRONTEND / "node_modules").is_dir(), reason="the packages of the frontend are not installed; type make page"
)
def test_a_build_of_the_page_keeps_the_stored_example() -> None:
    """The example is written by Python, so Vite must not empty the folder."""
    node = shutil.which("node", path=ENVIRONMENT["PATH"])
    if node is None:
        pytest.skip("node is not installed; the settings of Vite were not read")
    script = "import('vite').then((v) => v.resolveConfig({}, 'build')).then((c) => console.log(c.build.emptyOutDir))"
    process = subprocess.run([node, "-e", script], cwd=FRONTEND, env=ENVIRONMENT, capture_output=True, text=True)
    assert process.stdout.split()[-1:] == ["false"], process.stderr


@pytest.fixture
def ci() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci" / "browser.py"))


def test_a_browser_is_named_found_or_installed(ci: dict[str, Any]) -> None:
    calls = []

    def fail() -> None:
        calls.append("fail")

    def install() -> str:
        calls.append("install")
        return "/installed"

    def find_one_name(name: str) -> str | None:
        return "/bin/" + name if name == "chromium-browser" else None

    installers = (fail, install, install)
    assert ci["chromium"]({"RHEOSCOPE_CHROMIUM": "/named"}, lambda name: "/system", installers) == "/named"
    assert ci["chromium"]({}, find_one_name, installers) == "/bin/chromium-browser"
    assert calls == []
    assert ci["chromium"]({}, lambda name: None, installers) == "/installed"
    assert calls == ["fail", "install"]


def test_a_missing_browser_or_page_is_one_line(ci: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        ci["BrowserError"], match=r"Chromium is not installed and cannot be downloaded.*apt install chromium"
    ) as error:
        ci["chromium"]({}, lambda name: None, (lambda: None,))
    assert "\n" not in str(error.value)
    with pytest.raises(ci["BrowserError"], match=r"index.html is missing.*type make studio"):
        ci["check_built"](tmp_path)
