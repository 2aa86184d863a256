"""How much of an analysis is done, for whoever waits: loops tick, and nobody has to hand a listener down to them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Hear = Callable[[int, int], object]
_HEARING: ContextVar[Hear | None] = ContextVar("hearing", default=None)


def tick(done: int, total: int) -> None:
    """Tell whoever listens, in this thread, how much is done; nothing where nobody does.

    >>> tick(1, 2)
    """
    hear = _HEARING.get()
    if hear is not None:
        hear(done, total)


@contextmanager
def hearing(hear: Hear | None) -> Iterator[None]:
    """While it is open every tick of this thread is heard.

    >>> heard = []
    >>> with hearing(lambda done, total: heard.append((done, total))):
    ...     tick(1, 2)
    >>> heard
    [(1, 2)]
    """
    token = _HEARING.set(hear)
    try:
        yield
    finally:
        _HEARING.reset(token)
