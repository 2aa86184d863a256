"""Progress on stderr: a bar in a terminal, a line every ten seconds in a file or a pipe."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message, Verbatim
from rheoscope.report.console import console
from rheoscope.report.idle_cores import use_idle_cores

if TYPE_CHECKING:
    from rich.console import Console

    from rheoscope.running.runner import RunnableModel


LINE_INTERVAL = 10.0
"""Seconds between two lines in a file or a pipe."""


@contextmanager
def progress(task: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of one task. Call the result with the number of finished steps and of all steps.

    >>> with progress("counting") as update:
    ...     update(1, 2)
    """
    with progress_bar(task) as start_task:
        yield start_task(task)


@contextmanager
def progress_bar(
    first_task: str = Message("reading the text"),
) -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """Show the progress of several tasks. Call the result with the name of a task to get its update function.

    >>> with progress_bar() as start_task:
    ...     start_task("counting")(1, 2)
    """
    target = console(stderr=True)
    with _rich_bar(target, first_task) if target.is_terminal else _periodic_lines(target, first_task) as start_task:
        yield start_task


@contextmanager
def _rich_bar(target: "Console", first_task: str) -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=target, transient=True) as rich_progress:
        task_id = rich_progress.add_task(escape(render(first_task)), total=None)

        def start_task(task: str) -> Callable[[int, int], None]:
            rich_progress.reset(task_id, description=escape(render(task)), total=None)
            return lambda done, total: rich_progress.update(task_id, completed=done, total=total)

        yield start_task


@contextmanager
def _periodic_lines(target: "Console", first_task: str) -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """A thread that prints the current task and its progress, and ends with the block."""
    current_line, finished, start = [first_task, ""], threading.Event(), time.monotonic()

    def start_task(task: str) -> Callable[[int, int], None]:
        current_line[:] = [task, ""]

        def update(done: int, total: int) -> None:
            current_line[:] = [task, f" {100 * done / total:.0f} %" if total else ""]

        return update

    def print_lines() -> None:
        while not finished.wait(LINE_INTERVAL):
            seconds = time.monotonic() - start
            target.print(
                f"rheoscope: {render(current_line[0])}{current_line[1]} ({seconds:.0f} s)",
                soft_wrap=True,
                markup=False,
                highlight=False,
            )

    printer = threading.Thread(target=print_lines, daemon=True)
    printer.start()
    try:
        yield start_task
    finally:
        finished.set()
        printer.join()


def load_model(
    source: str | None, device: str | None, dtype: str | None, untrained: bool = False, seed: int = 0
) -> "RunnableModel":
    """`rheoscope.load` with a progress bar, on idle cores. All commands open their model this way."""
    use_idle_cores()
    name = Message("the default model") if source is None else Verbatim(source)
    with progress(Message("loading {model}", model=name)) as on_progress:
        from rheoscope.opening import load

        model = load(source, device=device, dtype=dtype, untrained=untrained, seed=seed, progress=on_progress)
    if dtype is not None:
        from rheoscope.report.dtype_warning import warn_if_slow

        warn_if_slow(model)
    return model


LARGE_MODEL_WEIGHTS = 30_000_000
"""The number of weights from which on a model is compared with one untrained control, not several."""


def control_factories(
    model: "RunnableModel",
    source: str | None,
    device: str | None,
    dtype: str | None,
    requested: int | None,
    n_tokens: int,
) -> "Sequence[Callable[[], RunnableModel]]":
    """Functions that build untrained controls: the requested number, or one for large models and long texts."""
    from rheoscope.opening import load
    from rheoscope.report.analysis_runs import LONG_TEXT, MAX_CONTROLS

    n_weights = sum(weight.numel() for weight in model.network.parameters())
    n_controls = (
        requested
        if requested is not None
        else MAX_CONTROLS
        if n_weights < LARGE_MODEL_WEIGHTS and n_tokens <= LONG_TEXT
        else 1
    )
    return [partial(load, source, device=device, dtype=dtype, untrained=True, seed=seed) for seed in range(n_controls)]
