"""Turns: the jobs of a lane share its time, so that no text waits for all analyses of another."""

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rheoscope.studio.jobs import Job

TURN_SECONDS = 0.5
"""A job that has computed for so long hands over to a waiting job at its next progress report."""
MAX_PAUSED_ANALYSES = 4
"""Number of analyses that may be paused in the middle. Each of them keeps its intermediate arrays in memory."""
MAX_WAIT_FOR_QUICK_WORK = 1.0
"""Seconds that a job waits at each progress report while quick requests are running."""


class Turns:
    """One job of a lane computes at a time. The job that has computed least gets the next turn.

    A new job starts with the time of the job that has computed least. So it is next, and it cannot displace older jobs for
    long. All threads of a job pause together. While quick requests run, `quick_is_idle` is not set, and every job pauses.
    """

    def __init__(self, quick_is_idle: threading.Event) -> None:
        self._quick_is_idle = quick_is_idle
        self._changed = threading.Condition()
        self._used_seconds: dict[Job, float] = {}
        self._paused_inside: set[Job] = set()
        self._current: Job | None = None
        self._turn_start = 0.0

    def add(self, job: "Job") -> None:
        """Add a job that will wait for its turns."""
        with self._changed:
            self._used_seconds[job] = min(self._used_seconds.values(), default=0.0)
            if self._current is None:
                self._pass_on()

    def start(self, job: "Job") -> None:
        """Wait for the first turn of a job. Returns early if the job is stopped."""
        with self._changed:
            self._wait(job)

    def pause(self, job: "Job", is_between_analyses: bool) -> None:
        """Hand over if the turn is over, and wait for the next turn. Any thread of the job may call this."""
        self._quick_is_idle.wait(MAX_WAIT_FOR_QUICK_WORK)
        with self._changed:
            is_over = self._current is job and time.monotonic() - self._turn_start > TURN_SECONDS
            may_pause = is_between_analyses or len(self._paused_inside) < MAX_PAUSED_ANALYSES
            if is_over and may_pause and len(self._used_seconds) > 1:
                if not is_between_analyses:
                    self._paused_inside.add(job)
                self._charge(job)
                self._pass_on()
            if job in self._used_seconds:
                self._wait(job)
                self._paused_inside.discard(job)

    def end(self, job: "Job") -> None:
        """Remove a job. The next one computes."""
        with self._changed:
            self._used_seconds.pop(job, None)
            self._paused_inside.discard(job)
            if self._current is job:
                self._pass_on()

    def wake(self) -> None:
        """Let stopped jobs notice that they are stopped."""
        with self._changed:
            self._changed.notify_all()

    def _charge(self, job: "Job") -> None:
        self._used_seconds[job] = (
            self._used_seconds.pop(job) + time.monotonic() - self._turn_start
        )  # now the last of equals

    def _pass_on(self) -> None:
        self._current = min(self._used_seconds, key=self._used_seconds.__getitem__, default=None)
        self._turn_start = time.monotonic()
        self._changed.notify_all()

    def _wait(self, job: "Job") -> None:
        while self._current is not job and not job.is_stopped:
            self._changed.wait()
