"""No process outlives its test: what a test starts ends with it, however the test ends."""

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
"""Seconds that a test waits for a process; one that never ends must not stop a suite."""
GRACE = 10
"""Seconds that a process has to end what it started, when it is asked to."""
PLAIN = subprocess.Popen
STARTED: "list[subprocess.Popen[Any]]" = []
"""What has not been ended yet, the last one last."""


class Ended(PLAIN):  # type: ignore[type-arg]
    """A process that leads a group of its own, and is waited for so long and no longer."""

    def __init__(self, *words: Any, **how: Any) -> None:
        super().__init__(*words, **how | {"start_new_session": True})
        STARTED.append(self)

    def communicate(self, input: Any = None, timeout: float | None = None) -> Any:
        return super().communicate(input, PATIENCE if timeout is None else timeout)


@contextmanager
def ended() -> Iterator[None]:
    """Every process started through `subprocess` meanwhile leads a group of its own, and that group is ended at the end."""
    before, outside = len(STARTED), subprocess.Popen
    subprocess.Popen = Ended  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = outside  # type: ignore[misc]
        while len(STARTED) > before:
            end(STARTED.pop())


def end(process: "subprocess.Popen[Any]") -> None:
    """Asked first, so that torchrun ends its own; then the whole group is killed."""
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
    """A child of this process that does `work` and ends: torch and the package are there already, and are not imported anew.

    It is like a process that a shell starts in the foreground: a group of its own, words, files in the place of the terminal,
    an ear for Ctrl-C, a status. Of this process it has one thread, so it computes with one. It ends with the `with`.
    """

    def __init__(self, work: Callable[[], Any], *words: str, **environment: str) -> None:
        self.out, self.error = (TemporaryFile("w+") for _ in range(2))  # noqa: SIM115
        self.process = get_context("fork").Process(target=self._do, args=(work, words, environment))
        with catch_warnings(action="ignore"):  # Python 3.12 warns of the threads that stay behind
            self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid

    def _do(self, work: Callable[[], Any], words: Sequence[str], environment: dict[str, str]) -> None:
        os.setsid()
        subprocess.Popen = PLAIN  # type: ignore[misc]  # what it starts is of its group, and ends with it
        for here, there in ((1, self.out), (2, self.error)):
            os.dup2(there.fileno(), here)
        sys.stdout, sys.stderr = (open(one, "w", buffering=1, closefd=False) for one in (1, 2))  # noqa: SIM115
        sys.argv = ["rheoscope", *words]
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
        """Once it has ended: how, and what it said."""
        self.process.join(PATIENCE if timeout is None else timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("a fork", PATIENCE)
        told = [one.seek(0) or one.read() for one in (self.out, self.error)]
        return subprocess.CompletedProcess("a fork", self.process.exitcode, *told)


def forked(work: Callable[[], Any], *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """What a fork that does this work leaves when it has ended."""
    with Fork(work, *words, **environment) as child:
        return child.done()


def forget(*packages: str) -> None:
    """In a fork: the package and these others were never imported; it will be as its users import it, without checks of shapes."""
    for name in [one for one in sys.modules if one.split(".")[0] in ("rheoscope", *packages)]:
        del sys.modules[name]
    sys.meta_path[:] = [one for one in sys.meta_path if not type(one).__module__.startswith("jaxtyping")]
