"""Threads that take turns on a streamed model, so that several loops over its layers read each block once."""

from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from threading import Condition, get_ident

START = -1
"""The request of a thread that has not used a block yet."""


class BlockTurns:
    """One thread of a group runs at a time, until it needs another block than the current one.

    Then the next thread that needs the current block runs. When none needs it, the group moves to the next higher block that a thread
    waits for, and after the last block to the lowest one. So threads that each loop over all layers move through the model together.
    A thread outside of the group never waits.
    """

    def __init__(self) -> None:
        self.block = START
        self._running: int | None = None
        self._requests: dict[int, int] = {}
        self._changed, self._is_closed = Condition(), False

    @contextmanager
    def take_part(self) -> Iterator[None]:
        """Inside, this thread belongs to the group and runs in turn."""
        self._wait_for_turn(START)
        try:
            yield
        finally:
            with self._changed:
                self._pass_on()

    def wait_for(self, block: int) -> None:
        """Let the other threads of the group finish with the current block, unless this one needs it too."""
        if self._running == get_ident() and block != self.block:
            self._wait_for_turn(block)

    def close(self) -> None:
        """End the group: threads that wait raise CancelledError."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _wait_for_turn(self, block: int) -> None:
        thread = get_ident()
        with self._changed:
            self._requests[thread] = block
            if self._running in (None, thread):
                self._pass_on()
            self._changed.wait_for(lambda: self._running == thread or self._is_closed)
            if self._running != thread:
                raise CancelledError

    def _pass_on(self) -> None:
        """Choose the thread that runs next, and the block that it needs."""
        self._running = None
        if self._requests:
            thread = min(self._requests, key=lambda thread: self._distance(self._requests[thread]))
            block = self._requests.pop(thread)
            self._running, self.block = thread, self.block if block == START else block
        self._changed.notify_all()

    def _distance(self, block: int) -> tuple[int, int]:
        """The order of requests: threads that start, the current block, higher blocks, lower blocks."""
        return (0, 0) if block == START else (1 if block >= self.block else 2, block)
