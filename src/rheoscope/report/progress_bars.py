"""Progress on stderr: a bar in a terminal, a line every ten seconds in a file or a pipe."""

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.report.console import console
from rheoscope.report.idle_cores import use_idle_cores

if TYPE_CHECKING:
    from rich.console import Console

    from rheoscope.running.runner import RunnableModel


READING = Message("reading")
LINE_INTERVAL = 10.0
"""Seconds between two lines if stderr is a file or a pipe."""


@contextmanager
def progress(task: str) -> Iterator[Callable[[int, int], None]]:
    """Progress of one task. The block calls the yielded function with the number done and the total.

    >>> with progress("counting") as on_progress:
    ...     on_progress(1, 2)
    """
    with progress_bar(task) as start_task:
        yield start_task(task)


@contextmanager
def progress_bar(first_task: str = READING) -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """Progress of several tasks. The block names a task and gets a function of the number done and the total.

    >>> with progress_bar() as start_task:
    ...     start_task("transport")(1, 2)
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
    """A thread that prints the task and the share done, and ends with the block."""
    status, finished, start = [render(first_task)], threading.Event(), time.monotonic()

    def start_task(task: str) -> Callable[[int, int], None]:
        name = render(task)
        status[:] = [name]

        def update(done: int, total: int) -> None:
            status[:] = [f"{name} {100 * done / total:.0f} %" if total else name]

        return update

    def print_lines() -> None:
        while not finished.wait(LINE_INTERVAL):
            seconds = time.monotonic() - start
            target.print(f"rheoscope: {status[0]} ({seconds:.0f} s)", soft_wrap=True, markup=False, highlight=False)

    printer = threading.Thread(target=print_lines, daemon=True)
    printer.start()
    try:
        yield start_task
    finally:
        finished.set()
        printer.join()


@contextmanager
def print_notices() -> Iterator[None]:
    """Inside, print the warning that a model is streamed as one line on stderr. Other warnings stay as they are."""
    from rheoscope.running.available_memory import StreamedModelWarning

    show_warning = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if issubclass(category, StreamedModelWarning):
            console(stderr=True).print(render(message.args[0]), soft_wrap=True, markup=False, highlight=False)  # type: ignore[union-attr]
        else:
            show_warning(message, category, *place)

    with warnings.catch_warnings():
        warnings.simplefilter("always", StreamedModelWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def load_model(source: str | None, device: str | None, dtype: str | None, **options: Any) -> "RunnableModel":
    """A model of one text, loaded with a progress bar: of an encoder-decoder the encoder. Options are those of `open_model`."""
    model = open_model(source, device, dtype, **options)
    from rheoscope.running.pair_sides import one_text_model

    return one_text_model(model)


def open_model(
    source: str | None,
    device: str | None,
    dtype: str | None,
    untrained: bool = False,
    seed: int = 0,
    stream: bool | None = None,
    adapter: str | None = None,
    revision: str | None = None,
) -> "RunnableModel":
    """`rheoscope.load` with a progress bar and on idle cores. Every command opens its model with it."""
    use_idle_cores()
    task = Message("loading the default model") if not source else Message("loading {model}", model=source)
    with progress(task) as on_progress, print_notices():
        from rheoscope.opening import load

        model = load(
            source,
            device=device,
            dtype=dtype,
            revision=revision,
            untrained=untrained,
            seed=seed,
            stream=stream,
            progress=on_progress,
            adapter=adapter,
        )
    if dtype is not None:
        from rheoscope.report.dtype_warning import warn_if_slow

        warn_if_slow(model)
    return model
