"""Progress of an analysis: loops call `tick`, and `listen` receives the ticks of its thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

OnProgress = Callable[[int, int], object]
_LISTENER: ContextVar[OnProgress | None] = ContextVar("progress listener", default=None)


def tick(done: int, total: int) -> None:
    """Report progress to the listener of this thread, if there is one.

    >>> tick(1, 2)
    """
    on_progress = _LISTENER.get()
    if on_progress is not None:
        on_progress(done, total)


def count_steps(total: int) -> Callable[[], None]:
    """A function that reports one more finished step at every call.

    >>> ticks = []
    >>> with listen(lambda done, total: ticks.append((done, total))):
    ...     advance = count_steps(2)
    ...     advance(), advance()
    (None, None)
    >>> ticks
    [(1, 2), (2, 2)]
    """
    finished = 0

    def advance() -> None:
        nonlocal finished
        finished = min(finished + 1, total)
        tick(finished, total)

    return advance


def current_listener() -> OnProgress | None:
    """The listener of this thread, if there is one."""
    return _LISTENER.get()


@contextmanager
def listen(on_progress: OnProgress | None) -> Iterator[None]:
    """Inside, `on_progress` receives every tick of this thread.

    >>> ticks = []
    >>> with listen(lambda done, total: ticks.append((done, total))):
    ...     tick(1, 2)
    >>> ticks
    [(1, 2)]
    """
    token = _LISTENER.set(on_progress)
    try:
        yield
    finally:
        _LISTENER.reset(token)
