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
LANE_THREADS = {"loading": 1, "quick": 2, "asked": 1, "told": 1}
"""Threads of each kind of work: models opened one at a time, passes of a model, analyses that somebody waits for, the questions."""
PROGRESS_INTERVAL = 0.2
"""Seconds between two words about how much is done."""
FINAL_EVENTS = ("done", "error", "cancelled")
"""After one of these nothing more is told."""


class StopWork(BaseException):
    """Raised inside work that nobody waits for any more; nothing that catches faults of an analysis catches it."""


class CancelledError(RheoscopeError):
    """What came of work that was cancelled."""


class BusyError(RheoscopeError):
    """More work is waiting than the server takes."""


class MissingError(RheoscopeError):
    """What is asked for is not here (any more)."""


class EventLog:
    """What a job told so far, replayed to whoever listens late. Told by any thread, heard in any event loop."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._lock = threading.Lock()
        self._listeners: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def publish(self, event: str, /, **data: Any) -> None:
        with self._lock:
            self.events.append((event, data))
            for loop, wake_up in self._listeners:
                loop.call_soon_threadsafe(wake_up.set)

    async def listen(self) -> AsyncIterator[Event]:
        """Every event, from the first on; ends with the one that is the last."""
        listener, n_sent = (asyncio.get_running_loop(), asyncio.Event()), 0
        with self._lock:
            self._listeners.add(listener)
        try:
            while True:
                listener[1].clear()
                for event in self.events[n_sent:]:
                    n_sent += 1
                    yield event
                    if event[0] in FINAL_EVENTS:
                        return
                await listener[1].wait()
        finally:
            with self._lock:
                self._listeners.discard(listener)


class Job:
    """One piece of work: who holds it (`holders`), what it told (`log`), what came of it (`result`).

    Whoever asks for the same work holds the same Job under an id of their own; it is cancelled when the last lets go.
    """

    def __init__(self, name: str) -> None:
        self.name, self.log, self.result = name, EventLog(), Future[Any]()
        self.result.set_running_or_notify_cancel()  # who stops waiting for it does not take it from the others
        self.holders: set[str] = set()
        self.is_abandoned = False  # its last holder let go: whoever comes now begins anew
        self._stop_requested, self._has_begun, self._lock = threading.Event(), False, threading.Lock()

    @property
    def is_over(self) -> bool:
        return self.result.done()

    def stop(self) -> None:
        """The work ends at its next step, or at once where it waits in line."""
        self._stop_requested.set()
        with self._lock:
            was_waiting, self._has_begun = not self._has_begun, True
        if was_waiting:
            self._end_cancelled()

    def raise_if_stopped(self) -> None:
        if self._stop_requested.is_set():
            raise StopWork

    def progress_callback(self, name: str) -> Callable[[int, int], None]:
        """What hears how much of `name` is done, and ends the work where nobody waits for it."""
        self.raise_if_stopped()
        self.log.publish("progress", name=name, done=0, total=1)
        last_published = time.monotonic()

        def on_progress(done: int, total: int) -> None:
            nonlocal last_published
            self.raise_if_stopped()
            if done == total or time.monotonic() - last_published > PROGRESS_INTERVAL:
                last_published = time.monotonic()
                self.log.publish("progress", name=name, done=done, total=total)

        return on_progress

    def run(self, work: "Callable[[Job], Any]") -> None:
        """Do it; whatever happens ends in one last event and one result."""
        with self._lock:
            already_begun, self._has_begun = self._has_begun, True
        if already_begun:
            return
        try:
            self.raise_if_stopped()
            result = work(self)
        except StopWork:
            self._end_cancelled()
        except RheoscopeError as error:
            self._end("error", error, error=str(error))
        except Exception as error:  # a fault of ours: the page says so in one line, the log has the rest
            self._end("error", error, error=f"{self.name} failed inside the server ({type(error).__name__})")
        else:
            self.result.set_result(result)
            self.log.publish("done")

    def _end_cancelled(self) -> None:
        self._end("cancelled", CancelledError("this work was cancelled; ask again"))

    def _end(self, event: str, exception: Exception, /, **data: Any) -> None:
        self.result.set_exception(exception)
        self.log.publish(event, **data)


class JobQueue:
    """Jobs in lanes: in each at most `limit` that are not over; one more is refused."""

    def __init__(self, max_jobs: int) -> None:
        self.max_jobs = max_jobs
        self._lock = threading.Lock()
        self._pools = {
            name: ThreadPoolExecutor(n_threads, f"studio-{name}") for name, n_threads in LANE_THREADS.items()
        }
        self._jobs_by_holder: dict[str, Job] = {}
        self._open_jobs: dict[str, set[Job]] = {name: set() for name in LANE_THREADS}

    def submit(self, lane: str, name: str, work: Callable[[Job], Any]) -> Job:
        """Put work into a lane."""
        job = Job(name)
        with self._lock:
            if len(self._open_jobs[lane]) >= self.max_jobs:
                raise BusyError(
                    f"{self.max_jobs} jobs are waiting already, as many as this server takes; try again soon"
                )
            self._open_jobs[lane].add(job)
        job.result.add_done_callback(lambda _: self._remove_open(lane, job))
        self._pools[lane].submit(job.run, work)
        return job

    def _remove_open(self, lane: str, job: Job) -> None:
        with self._lock:
            self._open_jobs[lane].discard(job)

    def add_holder(self, job: Job) -> str:
        """An id under which one client follows a job and lets go of it; the oldest that are over are forgotten."""
        holder_id = secrets.token_hex(8)
        with self._lock:
            job.holders.add(holder_id)
            self._jobs_by_holder[holder_id] = job
            finished_ids = [
                finished_id
                for finished_id, held_job in self._jobs_by_holder.items()
                if held_job.is_over and held_job is not job
            ]
            for finished_id in finished_ids[: max(0, len(self._jobs_by_holder) - 4 * self.max_jobs)]:
                del self._jobs_by_holder[finished_id]
        return holder_id

    def get_job(self, holder_id: str) -> Job:
        """A job by the id of one who holds it."""
        job = self._jobs_by_holder.get(holder_id)
        if job is None:
            raise MissingError(f"no job {holder_id[:40]!r} is here (any more)")
        return job

    def release(self, holder_id: str) -> bool:
        """Let go of a job; says whether it was still open. The last holder's release cancels it."""
        with self._lock:
            job = self._jobs_by_holder.get(holder_id)
            if job is None or holder_id not in job.holders:
                return False
            job.holders.discard(holder_id)
            is_last, was_open = not job.holders, not job.is_over
            job.is_abandoned = job.is_abandoned or is_last
        if is_last:
            job.stop()
        return was_open

    def close(self) -> None:
        """End all work at its next step and give the threads back."""
        with self._lock:
            jobs = set().union(*self._open_jobs.values())
        for job in jobs:
            job.stop()
        for pool in self._pools.values():
            pool.shutdown()
