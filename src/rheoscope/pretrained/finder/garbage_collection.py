"""Python's search for reference cycles, which is paused where a tape is made or read."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Inside, Python looks for no reference cycles. A tape has so many objects that it would search all modules several times.

    >>> with no_collections():
    ...     print(gc.isenabled())
    False
    >>> gc.isenabled()
    True
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
