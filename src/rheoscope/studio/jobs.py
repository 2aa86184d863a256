"""Long work as jobs: queued in lanes, told while it runs, cancelled between two steps, refused beyond a limit."""

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from rheoscope.shapes import RheoscopeError

Event = tuple[str, dict[str, Any]]
"""What happened, and what is said of it."""
LANES = {"loading": 1, "quick": 2, "asked": 1, "told": 1}
"""Threads of each kind of work: models opened one at a time, passes of a model, analyses that somebody waits for, the questions."""
OFTEN = 0.2
"""Seconds between two words about how much is done."""
LAST = ("done", "error", "cancelled")
"""After one of these nothing more is told."""


class Stop(BaseException):
    """Raised inside work that nobody waits for any more; nothing that catches faults of an analysis catches it."""


class CancelledError(RheoscopeError):
    """What came of work that was cancelled."""


class BusyError(RheoscopeError):
    """More work is waiting than the server takes."""


class MissingError(RheoscopeError):
    """What is asked for is not here (any more)."""


class Log:
    """What a job told so far, replayed to whoever listens late. Told by any thread, heard in any event loop."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self._lock = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def tell(self, event: str, /, **data: Any) -> None:
        with self._lock:
            self.told.append((event, data))
            for loop, bell in self._waiting:
                loop.call_soon_threadsafe(bell.set)

    async def listen(self) -> AsyncIterator[Event]:
        """Every event, from the first on; ends with the one that is the last."""
        mine, at = (asyncio.get_running_loop(), asyncio.Event()), 0
        with self._lock:
            self._waiting.add(mine)
        try:
            while True:
                mine[1].clear()
                for event in self.told[at:]:
                    at += 1
                    yield event
                    if event[0] in LAST:
                        return
                await mine[1].wait()
        finally:
            with self._lock:
                self._waiting.discard(mine)


class Job:
    """One piece of work: who holds it (`holders`), what it told (`log`), what came of it (`result`).

    Whoever asks for the same work holds the same Job under an id of their own; it is cancelled when the last lets go.
    """

    def __init__(self, name: str) -> None:
        self.name, self.log, self.result = name, Log(), Future[Any]()
        self.result.set_running_or_notify_cancel()  # who stops waiting for it does not take it from the others
        self.holders: set[str] = set()
        self.doomed = False  # its last holder let go: whoever comes now begins anew
        self._stop, self._began, self._lock = threading.Event(), False, threading.Lock()

    @property
    def over(self) -> bool:
        return self.result.done()

    def stop(self) -> None:
        """The work ends at its next step, or at once where it waits in line."""
        self._stop.set()
        with self._lock:
            waiting, self._began = not self._began, True
        if waiting:
            self._cancelled()

    def check(self) -> None:
        if self._stop.is_set():
            raise Stop

    def progress(self, name: str) -> Callable[[int, int], None]:
        """What hears how much of `name` is done, and ends the work where nobody waits for it."""
        self.check()
        self.log.tell("progress", name=name, done=0, total=1)
        last = time.monotonic()

        def tell(done: int, total: int) -> None:
            nonlocal last
            self.check()
            if done == total or time.monotonic() - last > OFTEN:
                last = time.monotonic()
                self.log.tell("progress", name=name, done=done, total=total)

        return tell

    def run(self, work: "Callable[[Job], Any]") -> None:
        """Do it; whatever happens ends in one last event and one result."""
        with self._lock:
            cancelled, self._began = self._began, True
        if cancelled:
            return
        try:
            self.check()
            found = work(self)
        except Stop:
            self._cancelled()
        except RheoscopeError as error:
            self._end("error", error, error=str(error))
        except Exception as error:  # a fault of ours: the page says so in one line, the log has the rest
            self._end("error", error, error=f"{self.name} failed inside the server ({type(error).__name__})")
        else:
            self.result.set_result(found)
            self.log.tell("done")

    def _cancelled(self) -> None:
        self._end("cancelled", CancelledError("this work was cancelled; ask again"))

    def _end(self, event: str, fault: Exception, /, **data: Any) -> None:
        self.result.set_exception(fault)
        self.log.tell(event, **data)


class Queue:
    """Jobs in lanes: in each at most `limit` that are not over; one more is refused."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._lanes = {name: ThreadPoolExecutor(many, f"studio-{name}") for name, many in LANES.items()}
        self._held: dict[str, Job] = {}
        self._open: dict[str, set[Job]] = {name: set() for name in LANES}

    def begin(self, lane: str, name: str, work: Callable[[Job], Any]) -> Job:
        """Put work into a lane."""
        job = Job(name)
        with self._lock:
            if len(self._open[lane]) >= self.limit:
                raise BusyError(f"{self.limit} jobs are waiting already, as many as this server takes; try again soon")
            self._open[lane].add(job)
        job.result.add_done_callback(lambda _: self._over(lane, job))
        self._lanes[lane].submit(job.run, work)
        return job

    def _over(self, lane: str, job: Job) -> None:
        with self._lock:
            self._open[lane].discard(job)

    def hold(self, job: Job) -> str:
        """An id under which one client follows a job and lets go of it; the oldest that are over are forgotten."""
        name = secrets.token_hex(8)
        with self._lock:
            job.holders.add(name)
            self._held[name] = job
            past = [one for one, held in self._held.items() if held.over and held is not job]
            for one in past[: max(0, len(self._held) - 4 * self.limit)]:
                del self._held[one]
        return name

    def job(self, name: str) -> Job:
        """A job by the id of one who holds it."""
        found = self._held.get(name)
        if found is None:
            raise MissingError(f"no job {name[:40]!r} is here (any more)")
        return found

    def release(self, name: str) -> bool:
        """Let go of a job; says whether it was still open. The last holder's release cancels it."""
        with self._lock:
            job = self._held.get(name)
            if job is None or name not in job.holders:
                return False
            job.holders.discard(name)
            last, was_open = not job.holders, not job.over
            job.doomed = job.doomed or last
        if last:
            job.stop()
        return was_open

    def close(self) -> None:
        """End all work at its next step and give the threads back."""
        with self._lock:
            jobs = set().union(*self._open.values())
        for job in jobs:
            job.stop()
        for pool in self._lanes.values():
            pool.shutdown()
