"""Child processes that would run for ever, and their own children, end with the test."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import Fork, end_processes, run_in_fork, unload_packages

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep({seconds})
"""


def is_running(pid: int) -> bool:
    """Whether a process is alive and not a zombie."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("seconds", [0, 600], ids=["parent has ended", "parent does not end"])
def test_children_and_grandchildren_end_with_a_failing_test(seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.processes.GRACE", 0.2)
    with pytest.raises(ZeroDivisionError), end_processes():  # noqa: PT012
        child = subprocess.Popen([sys.executable, "-c", STUBBORN.format(seconds=seconds)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert is_running(grandchild)
        1 / 0  # noqa: B018
    deadline = time.monotonic() + 30
    while is_running(grandchild) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(grandchild)
    assert not is_running(child.pid)


def test_waiting_for_a_process_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.processes.PATIENCE", 0.2)
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=False)


def test_no_compile_workers_are_started() -> None:
    from torch._inductor import config

    assert config.compile_threads == 1


def test_every_test_ends_its_processes() -> None:
    """Also this test: a process that it starts leads its own group."""
    process = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpgid(0))"], capture_output=True, text=True, check=True
    )
    assert int(process.stdout) != os.getpgid(0)


def test_fork_has_arguments_environment_stdout_and_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        print(sys.argv[1:], os.environ["SETTING"])
        os.write(2, b"below Python")
        sys.exit(3)

    process = run_in_fork(work, "a", "b", SETTING="c")
    assert (process.returncode, process.stdout, process.stderr) == (3, "['a', 'b'] c\n", "below Python")
    assert "SETTING" not in os.environ
    assert capfd.readouterr() == ("", "")


def test_failing_fork_prints_its_traceback() -> None:
    process = run_in_fork(lambda: 1 / 0)
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_fork_handles_ctrl_c_although_this_process_ignores_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = run_in_fork(lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(60))
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stderr.splitlines()[-1] == "KeyboardInterrupt"


def test_fork_computes_after_this_process_used_threads() -> None:
    """The fork has one thread; waiting for a second one would hang."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x = torch.randn(300, 300, requires_grad=True)
        (x @ x).exp().sum().backward()
        process = run_in_fork(lambda: (x @ x).exp().sum().backward())
    finally:
        torch.set_num_threads(threads)
    assert process.returncode == 0, process.stderr


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_fork_and_its_children_end_with_a_failing_test() -> None:
    def work() -> None:
        print(subprocess.Popen([sys.executable, "-c", STUBBORN.format(seconds=600)], stdout=2).pid, flush=True)
        time.sleep(600)

    children: list[int] = []
    with pytest.raises(ZeroDivisionError), Fork(work) as fork:  # noqa: PT012
        deadline = time.monotonic() + 60
        while not children and time.monotonic() < deadline:
            time.sleep(0.01)
            fork.out.seek(0)
            children = [int(line) for line in fork.out.read().splitlines(keepends=True) if line.endswith("\n")]
        assert all(map(is_running, [fork.pid, *children]))
        1 / 0  # noqa: B018
    deadline = time.monotonic() + 30
    while any(map(is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert children
    assert not any(map(is_running, [fork.pid, *children]))


def test_waiting_for_a_fork_is_limited() -> None:
    with pytest.raises(subprocess.TimeoutExpired), Fork(lambda: time.sleep(600)) as fork:
        fork.done(0.1)


def test_unloaded_package_is_imported_again_without_checks() -> None:
    import rheoscope.shapes

    def work() -> None:
        before = rheoscope.shapes
        unload_packages()
        import rheoscope.shapes as after

        print(before is after, any("jaxtyping" in type(finder).__module__ for finder in sys.meta_path))

    assert run_in_fork(work).stdout == "False False\n"
    assert sys.modules["rheoscope.shapes"] is rheoscope.shapes
