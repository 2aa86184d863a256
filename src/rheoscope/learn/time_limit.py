"""The time limit of a race: it stops between two intervals, before the next one could end too late."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class TimeLimit:
    """The moment at which a race must have stopped, on the clock of `time.monotonic`, and its longest interval so far.

    >>> limit = TimeLimit.of_seconds(60.0)
    >>> limit.allows_interval(), TimeLimit(limit.end, longest_interval=61.0).allows_interval()
    (True, False)
    """

    end: float = math.inf
    longest_interval: float = 0.0

    @staticmethod
    def of_seconds(seconds: float | None) -> "TimeLimit":
        """A limit from now on. None is no limit."""
        return TimeLimit() if seconds is None else TimeLimit(time.monotonic() + seconds)

    def allows_interval(self) -> bool:
        """Whether an interval as long as the longest one would end in time."""
        return time.monotonic() + self.longest_interval < self.end

    @contextmanager
    def measure_interval(self) -> Iterator[None]:
        """Measure an interval."""
        start = time.monotonic()
        yield
        self.longest_interval = max(self.longest_interval, time.monotonic() - start)
