"""Ctrl-C between training steps: the current step is finished first, so that a checkpoint is complete."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_between_steps(on_stop_request: Callable[[], object]) -> Iterator[Callable[[], bool]]:
    """Make the first Ctrl-C a request to stop, and yield a function that returns whether it was requested.

    `on_stop_request` is called at the first Ctrl-C. A second Ctrl-C stops at once. Only the main thread receives signals. In other
    threads, and if Ctrl-C is ignored (nohup), nothing changes.

    >>> with stop_between_steps(lambda: None) as stop_requested:
    ...     stop_requested()
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
