"""Exit status: Ctrl-C is 130, a full disk and a missing package are one line, and a fault of the program is raised."""

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import typer

from rheoscope.commands import exit_status
from rheoscope.commands.app import main
from rheoscope.commands.exit_status import run_to_status
from rheoscope.messages.message import Message
from rheoscope.report import progress_bars
from rheoscope.shapes import RheoscopeError
from tests.commands.conftest import Run
from tests.processes import Fork, run_in_fork

TEXT = "The keys to the cabinet are on the table"


def raise_error(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
        (typer.Abort(), 130, "stopped by Ctrl-C"),
        (RheoscopeError("draws must be positive"), 1, "draws must be positive"),
        (typer.BadParameter("no such thing"), 2, "Invalid value: no such thing; type rheoscope --help"),
        (OSError(28, "No space left on device"), 1, "cannot write the output: No space left on device"),
        (OSError(30, "Read-only file system", "a"), 1, "cannot read or write a: Read-only file system"),
        (
            ModuleNotFoundError("No module named 'ray'", name="ray.air"),
            1,
            "the Python package ray is not installed; type rheoscope doctor",
        ),
    ],
)
def test_every_failure_has_a_status_and_one_line(
    error: BaseException, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_to_status(lambda: raise_error(error)) == status
    assert capsys.readouterr().err == f"rheoscope: {line}\n"


def test_success_and_a_closed_pipe_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_to_status(lambda: None) == 0
    assert run_to_status(lambda: 1) == 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("error", [RuntimeError("a fault"), OSError("no number"), ModuleNotFoundError("x")])
def test_a_fault_of_the_program_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        run_to_status(lambda: raise_error(error))


# Ctrl-C


def interrupt(child: Fork, pattern: Path) -> "subprocess.CompletedProcess[str]":
    """Send Ctrl-C to a child as soon as a file exists, and wait for its end."""
    end = time.monotonic() + 60
    while not pattern.exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert pattern.exists()
    os.kill(child.pid, signal.SIGINT)
    return child.done(60)


def test_ctrl_c_while_a_model_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> None:
        (tmp_path / "started").touch()
        time.sleep(60)

    monkeypatch.setattr(progress_bars, "open_model", load)
    monkeypatch.chdir(tmp_path)
    with Fork(main, TEXT, "--no-html") as child:
        done = interrupt(child, tmp_path / "started")
    assert (done.returncode, done.stderr) == (130, "rheoscope: stopped by Ctrl-C\n")


def test_ctrl_c_exits_at_once_only_with_busy_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[int] = []
    monkeypatch.setattr(exit_status.os, "_exit", statuses.append)
    with pytest.raises(SystemExit) as end:
        exit_status.exit_now(130)
    assert (end.value.code, statuses) == (130, [])
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    with pytest.raises(SystemExit):
        exit_status.exit_now(130)
    with pytest.raises(SystemExit):
        exit_status.exit_now(1)
    is_over.set()
    thread.join()
    assert statuses == [130]


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("rheoscope.learn.train_report.run_training", ["train", "tiny", "--out", "run"]),
        ("rheoscope.learn.race_report.make_job", ["race", "run", "tiny", "--mechanisms", "tied", "--out", "run"]),
        ("rheoscope.corpus.corpus_job.job_from_mapping", ["corpus", "run", "--out", "run"]),
        ("rheoscope.studio.run_studio.run_command", ["studio"]),
        ("rheoscope.report.speed_report.run_speed_bench", ["bench"]),
    ],
)
def test_every_command_stops_with_130(
    target: str, arguments: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, lambda *_, **__: raise_error(KeyboardInterrupt()))
    outcome = run(*arguments)
    assert (outcome.status, outcome.out, outcome.err) == (130, "", "rheoscope: stopped by Ctrl-C\n")


# Standard output that cannot be written


FULL = "rheoscope: cannot write the output: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_a_full_standard_output_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rheoscope", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, FULL)


def write_to_a_full_device() -> None:
    """Run the command with a full standard output. The flush at the end of a process must not fail again."""
    with open("/dev/full", "w") as full:
        os.dup2(full.fileno(), 1)
    try:
        main()
    finally:
        sys.stdout.flush()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["analyses"], ["doctor", "--json"]])
def test_a_full_standard_output_of_a_command_is_one_line(arguments: list[str]) -> None:
    """In forks, because these commands import torch."""
    done = run_in_fork(write_to_a_full_device, *arguments)
    assert (done.returncode, done.stderr) == (1, FULL)


def test_a_warning_of_rheoscope_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        warnings.warn(Message("the tokenizer lost {n} characters", n=3), UserWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert run_to_status(command) == 0
    assert capsys.readouterr().err == "rheoscope: the tokenizer lost 3 characters\n"
