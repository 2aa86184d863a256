"""Child processes of tests: they end with the test, even if it fails."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from tempfile import TemporaryFile
from typing import Any
from warnings import catch_warnings

PATIENCE = 300
"""Seconds that a test waits for a process, so that a hanging process cannot stop the suite."""
GRACE = 10
"""Seconds that a process has to terminate its own children."""
PLAIN = subprocess.Popen
STARTED: "list[subprocess.Popen[Any]]" = []
"""The processes that still run, in the order of their start."""


class GroupLeader(PLAIN):  # type: ignore[type-arg]
    """A process with its own process group and a limited waiting time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"start_new_session": True})
        STARTED.append(self)

    def communicate(self, input: Any = None, timeout: float | None = None) -> Any:
        return super().communicate(input, PATIENCE if timeout is None else timeout)


@contextmanager
def end_processes() -> Iterator[None]:
    """Inside, every process of `subprocess` leads its own process group, which is killed at the end."""
    n_before, original_popen = len(STARTED), subprocess.Popen
    subprocess.Popen = GroupLeader  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = original_popen  # type: ignore[misc]
        while len(STARTED) > n_before:
            end(STARTED.pop())


def end(process: "subprocess.Popen[Any]") -> None:
    """Terminate a process, so that torchrun ends its own children; then kill the whole group."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


class Fork:
    """A forked child that does `work` and ends. torch and the package are already imported there.

    It resembles a foreground process of a shell: its own process group, arguments, files instead of the terminal, a handler for
    Ctrl-C, an exit status. It has one thread of this process, so it computes with one. It ends with the `with`.
    """

    def __init__(self, work: Callable[[], Any], *arguments: str, **environment: str) -> None:
        self.out, self.error = (TemporaryFile("w+") for _ in range(2))  # noqa: SIM115
        self.process = get_context("fork").Process(target=self._run, args=(work, arguments, environment))
        with catch_warnings(action="ignore"):  # Python 3.12 warns about forks of threaded processes
            self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid

    def _run(self, work: Callable[[], Any], arguments: Sequence[str], environment: dict[str, str]) -> None:
        os.setsid()
        subprocess.Popen = PLAIN  # type: ignore[misc]  # its children belong to its group and end with it
        for descriptor, file in ((1, self.out), (2, self.error)):
            os.dup2(file.fileno(), descriptor)
        sys.stdout, sys.stderr = (open(descriptor, "w", buffering=1, closefd=False) for descriptor in (1, 2))  # noqa: SIM115
        sys.argv = ["rheoscope", *arguments]
        os.environ.update(environment)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        import torch

        torch.set_num_threads(1)
        work()

    def __enter__(self) -> "Fork":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.out.close()
        self.error.close()

    def done(self, timeout: float | None = None) -> "subprocess.CompletedProcess[str]":
        """Wait for the end and return the exit status and the output."""
        self.process.join(PATIENCE if timeout is None else timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("a fork", PATIENCE)
        texts = [file.seek(0) or file.read() for file in (self.out, self.error)]
        return subprocess.CompletedProcess("a fork", self.process.exitcode, *texts)


def run_in_fork(work: Callable[[], Any], *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Do this work in a fork and return its exit status and output."""
    with Fork(work, *arguments, **environment) as child:
        return child.done()


def unload_packages(*packages: str) -> None:
    """In a fork, unload Rheoscope and other packages, so that Rheoscope is imported without shape checks, as by users."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("rheoscope", *packages)]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("jaxtyping")]
