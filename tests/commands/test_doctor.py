"""`rheoscope doctor`: every part with its state, what it enables and what to type, also in a broken installation."""

import json
import threading
import time
from importlib import util
from typing import Any

import pytest

from rheoscope.report import machine_checks
from tests.commands.conftest import Run

PARTS = {
    "Python", "torch", "CUDA", "MPS", "Triton", "transformers", "ray", "pyarrow", "duckdb", "studio page", "fastapi",
    "matplotlib", "scikit-learn", "network", "hub cache", "cache folder", "memory", "cores",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "_reaches_hub", lambda: False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def checks_by_name(run: Run) -> dict[str, dict[str, Any]]:
    outcome = run("doctor", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    return {check["name"]: check for check in json.loads(outcome.out)["checks"]}


def test_every_part_is_checked(run: Run) -> None:
    checks = checks_by_name(run)
    assert set(checks) >= PARTS
    assert checks["torch"]["is_ok"]
    assert checks["network"]["command"] == "curl -I https://huggingface.co"
    for check in checks.values():
        assert check["detail"]
        assert check["enables"]


def test_the_table_has_a_line_for_every_part(run: Run) -> None:
    outcome = run("doctor", width=160)
    assert outcome.status == 0
    for name in PARTS:
        line = next(line for line in outcome.out.splitlines() if f" {name} " in line)
        assert line.startswith(("ok ", "missing "))


def test_missing_packages_are_reported_with_the_command_that_installs_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks, "find_spec", lambda name: None)
    monkeypatch.setattr(machine_checks, "_torch", lambda: None)
    checks = checks_by_name(run)
    assert not checks["torch"]["is_ok"]
    assert checks["fastapi"]["command"] == "pip install 'rheoscope[studio]'"
    assert checks["ray"]["command"] == "pip install 'rheoscope[corpus]'"
    assert checks["CUDA"]["detail"] == "torch cannot be imported"
    assert checks["cores"]["is_ok"]


def test_a_check_that_raises_is_a_result(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> machine_checks.Check:
        raise RuntimeError("the driver\nis broken")

    monkeypatch.setattr(machine_checks, "_check_cuda", fail)
    check = next(machine_checks._guarded("CUDA", fail))
    assert (check.is_ok, check.detail) == (False, "RuntimeError: the driver\nis broken")
    assert run("doctor").status == 0


def test_the_network_check_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(machine_checks, "NETWORK_TIMEOUT", 0.2)
    is_over = threading.Event()

    def hang(*_: Any, **__: Any) -> None:
        is_over.wait(30)
        raise OSError

    monkeypatch.setattr(machine_checks.socket, "create_connection", hang)
    start = time.monotonic()
    assert not machine_checks._reaches_hub()
    assert time.monotonic() - start < 10
    is_over.set()


def test_installed_packages_are_found_without_importing_them() -> None:
    assert machine_checks._is_installed("transformers") == (util.find_spec("transformers") is not None)
    assert not machine_checks._is_installed("no_such_package")
    assert not machine_checks._is_installed("no_such_package.part")
