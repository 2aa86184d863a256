"""Ctrl-C between two steps: a step that has begun is finished, so that what is kept is whole."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_between_steps(on_stop_request: Callable[[], object]) -> Iterator[Callable[[], bool]]:
    """While it is open Ctrl-C only asks to stop, `heard` is called, and it gives whether somebody asked; a second one stops at once.

    Only the main thread of a program hears signals; elsewhere, and where Ctrl-C is ignored (nohup), nothing changes.

    >>> with stop_between_steps(lambda: None) as asked:
    ...     asked()
    False
    """
    signals: list[int] = []

    def handle_sigint(signum: int, frame: FrameType | None) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(signum)
        on_stop_request()

    in_main_thread = threading.current_thread() is threading.main_thread()
    previous_handler = signal.getsignal(signal.SIGINT) if in_main_thread else None
    if previous_handler is None or previous_handler is signal.SIG_IGN:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, handle_sigint)
    try:
        yield lambda: bool(signals)
    finally:
        signal.signal(signal.SIGINT, previous_handler)
