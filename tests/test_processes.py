"""What the tests do with processes: a child that would run for ever, and what it started, end with the test."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import Fork, ended, forget, forked

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


def test_no_compilers_outlive_a_test_and_are_waited_for() -> None:
    from torch._inductor import config

    assert config.compile_threads == 1


def test_the_battery_holds_every_test() -> None:
    """This very test: what it starts leads a group of its own."""
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpgid(0))"], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) != os.getpgid(0)


def test_a_fork_has_words_an_environment_and_two_sides_to_speak_to(capfd: pytest.CaptureFixture[str]) -> None:
    def says() -> None:
        print(sys.argv[1:], os.environ["TOLD"])
        os.write(2, b"below Python")
        sys.exit(3)

    done = forked(says, "a", "b", TOLD="c")
    assert (done.returncode, done.stdout, done.stderr) == (3, "['a', 'b'] c\n", "below Python")
    assert "TOLD" not in os.environ
    assert capfd.readouterr() == ("", "")


def test_a_fork_that_fails_says_where() -> None:
    done = forked(lambda: 1 / 0)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_a_fork_hears_ctrl_c_where_this_process_does_not() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = forked(lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(60))
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


def test_a_fork_computes_after_this_process_has() -> None:
    """Of several threads one is left; a second one would be waited for in vain."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x = torch.randn(300, 300, requires_grad=True)
        (x @ x).exp().sum().backward()
        done = forked(lambda: (x @ x).exp().sum().backward())
    finally:
        torch.set_num_threads(threads)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_fork_and_what_it_started_end_with_a_test_that_fails() -> None:
    def starts() -> None:
        print(subprocess.Popen([sys.executable, "-c", STUBBORN.format(seconds=600)], stdout=2).pid, flush=True)
        time.sleep(600)

    children: list[int] = []
    with pytest.raises(ZeroDivisionError), Fork(starts) as fork:  # noqa: PT012
        patience = time.monotonic() + 60
        while not children and time.monotonic() < patience:
            time.sleep(0.01)
            fork.out.seek(0)
            children = [int(line) for line in fork.out.read().splitlines(keepends=True) if line.endswith("\n")]
        assert all(map(is_running, [fork.pid, *children]))
        1 / 0  # noqa: B018
    patience = time.monotonic() + 30
    while any(map(is_running, children)) and time.monotonic() < patience:
        time.sleep(0.01)
    assert children
    assert not any(map(is_running, [fork.pid, *children]))


def test_no_fork_is_waited_for_for_ever() -> None:
    with pytest.raises(subprocess.TimeoutExpired), Fork(lambda: time.sleep(600)) as fork:
        fork.done(0.1)


def test_what_a_fork_forgets_it_imports_anew_and_unchecked() -> None:
    import rheoscope.shapes

    def anew() -> None:
        before = rheoscope.shapes
        forget()
        import rheoscope.shapes as after

        print(before is after, any("jaxtyping" in type(one).__module__ for one in sys.meta_path))

    assert forked(anew).stdout == "False False\n"
    assert sys.modules["rheoscope.shapes"] is rheoscope.shapes
