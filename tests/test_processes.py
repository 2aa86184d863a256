"""What the tests do with processes: a child that would run for ever, and what it started, end with the test."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import ended

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep({seconds})
"""


def is_running(pid: int) -> bool:
    """Alive, and no zombie that waits to be counted."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("seconds", [0, 600], ids=["a parent that is gone", "a parent that will not go"])
def test_children_and_grandchildren_end_with_a_test_that_fails(seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.processes.GRACE", 0.2)
    with pytest.raises(ZeroDivisionError), ended():  # noqa: PT012
        child = subprocess.Popen([sys.executable, "-c", STUBBORN.format(seconds=seconds)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert is_running(grandchild)
        1 / 0  # noqa: B018
    patience = time.monotonic() + 30
    while is_running(grandchild) and time.monotonic() < patience:
        time.sleep(0.01)
    assert not is_running(grandchild)
    assert not is_running(child.pid)


def test_nothing_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.processes.PATIENCE", 0.2)
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=False)


def test_the_battery_holds_every_test() -> None:
    """This very test: what it starts leads a group of its own."""
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpgid(0))"], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) != os.getpgid(0)
