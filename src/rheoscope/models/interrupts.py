"""Ctrl-C between two steps: a step that has begun is finished, so that what is kept is whole."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def between_steps(heard: Callable[[], object]) -> Iterator[Callable[[], bool]]:
    """While it is open Ctrl-C only asks to stop, `heard` is called, and it gives whether somebody asked; a second one stops at once.

    Only the main thread of a program hears signals; elsewhere, and where Ctrl-C is ignored (nohup), nothing changes.

    >>> with between_steps(lambda: None) as asked:
    ...     asked()
    False
    """
    asks: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if asks:
            raise KeyboardInterrupt
        asks.append(number)
        heard()

    here = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if here else None
    if before is None or before is signal.SIG_IGN:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, hear)
    try:
        yield lambda: bool(asks)
    finally:
        signal.signal(signal.SIGINT, before)
