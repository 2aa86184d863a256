"""No process outlives its test: what a test starts ends with it, however the test ends."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

PATIENCE = 300
"""Seconds that a test waits for a process; one that never ends must not stop a suite."""
GRACE = 10
"""Seconds that a process has to end what it started, when it is asked to."""
UNCOMPILED = """
import sys, types
sys.modules["torch._dynamo"] = types.SimpleNamespace(graph_break=lambda: None, disable=lambda function, *_, **__: function)
"""
"""What a process begins with that trains: the first step of an optimiser imports torch's compiler, which takes as long as torch,
to break a graph that nobody makes."""


@contextmanager
def ended() -> Iterator[None]:
    """Every process started through `subprocess` meanwhile leads a group of its own, and that group is ended at the end."""
    started: list[subprocess.Popen[Any]] = []

    class Ended(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *words: Any, **how: Any) -> None:
            super().__init__(*words, **how | {"start_new_session": True})
            started.append(self)

        def communicate(self, input: Any = None, timeout: float | None = None) -> Any:
            return super().communicate(input, PATIENCE if timeout is None else timeout)

    plain, subprocess.Popen = subprocess.Popen, Ended  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = plain  # type: ignore[misc]
        for process in started:
            end(process)


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
