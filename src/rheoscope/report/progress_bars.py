"""A bar on stderr while something takes long, and a line now and then where stderr is a file or a pipe."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from rheoscope.report.console import console
from rheoscope.report.idle_cores import use_idle_cores

if TYPE_CHECKING:
    from rich.console import Console

    from rheoscope.running.runner import Running


EVERY = 10.0
"""Seconds between two lines where stderr is a file or a pipe."""


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """While it is open, tell it how many are done, and of how many.

    >>> with progress("counting") as tell:
    ...     tell(1, 2)
    """
    with asking_bar(what) as tell:
        yield tell(what)


@contextmanager
def asking_bar(first: str = "reading") -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """While it is open, tell it what is asked; it gives what hears how much of that is done.

    A bar where a person looks at it; else a line every ten seconds.

    >>> with asking_bar() as tell:
    ...     tell("transport")(1, 2)
    """
    where = console(stderr=True)
    with _bar(where, first) if where.is_terminal else _lines(where, first) as tell:
        yield tell


@contextmanager
def _bar(where: "Console", first: str) -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=where, transient=True) as bars:
        bar = bars.add_task(escape(first), total=None)

        def tell(what: str) -> Callable[[int, int], None]:
            bars.reset(bar, description=escape(what), total=None)
            return lambda done, total: bars.update(bar, completed=done, total=total)

        yield tell


@contextmanager
def _lines(where: "Console", first: str) -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """What goes on and its share done, said by a thread that ends with it."""
    now, over, began = [first, ""], threading.Event(), time.monotonic()

    def tell(what: str) -> Callable[[int, int], None]:
        now[:] = [what, ""]

        def hear(done: int, total: int) -> None:
            now[:] = [what, f" {100 * done / total:.0f} %" if total else ""]

        return hear

    def speak() -> None:
        while not over.wait(EVERY):
            seconds = time.monotonic() - began
            where.print(f"rheoscope: {''.join(now)} ({seconds:.0f} s)", soft_wrap=True, markup=False, highlight=False)

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield tell
    finally:
        over.set()
        speaker.join()


def opened(
    source: str | None, device: str | None, dtype: str | None, untrained: bool = False, seed: int = 0
) -> "Running":
    """`rheoscope.load` with a bar and on idle cores, as every command opens its model."""
    use_idle_cores()
    with progress(f"loading {source or 'the default model'}") as tell:
        from rheoscope.opening import load

        model = load(source, device=device, dtype=dtype, untrained=untrained, seed=seed, progress=tell)
    if dtype is not None:
        from rheoscope.report.dtype_warning import tell_if_slow

        tell_if_slow(model)
    return model


LARGE = 30_000_000
"""Weights of a model from which on one untrained control stands beside it, not several; beside a long text too."""


def untrained_controls(
    model: "Running", source: str | None, device: str | None, dtype: str | None, count: int | None, tokens: int
) -> "Sequence[Callable[[], Running]]":
    """Each makes the same architecture at initial weights: as often as is asked for, or as model and text allow."""
    from rheoscope.opening import load
    from rheoscope.report.run_analyses import LONG, MOST

    weights = sum(weight.numel() for weight in model.network.parameters())
    many = count if count is not None else MOST if weights < LARGE and tokens <= LONG else 1
    return [partial(load, source, device=device, dtype=dtype, untrained=True, seed=seed) for seed in range(many)]
