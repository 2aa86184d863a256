"""Background jobs: queued in lanes, with an event log, cancellation and a limit on the queue."""

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

Event = tuple[str, dict[str, Any]]
"""The name of an event and its data."""
LANE_THREADS = {"loading": 1, "quick": 2, "analysis": 1, "questions": 1}
"""Threads per lane. The lanes load models, serve quick requests, run requested analyses and answer the questions."""
PROGRESS_INTERVAL = 0.2
"""Minimum seconds between two progress events of a job."""
FINAL_EVENTS = ("done", "error", "cancelled")
"""Events that end a log."""


class StopWork(BaseException):
    """Raised inside a cancelled job. It is no Exception, so handlers of failed analyses do not catch it."""


class CancelledError(RheoscopeError):
    """The job was cancelled."""


class BusyError(RheoscopeError):
    """The queue of the server is full."""


class MissingError(RheoscopeError):
    """The requested item does not exist, or was evicted."""


class EventLog:
    """The events of a job. Any thread may publish, and a late listener receives all earlier events too."""

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
        """All events from the first one on, until a final event."""
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
    """A unit of background work with its clients (`holders`), its events (`log`) and its `result`.

    Clients that request the same work share one Job, each under its own id. The Job is cancelled when the last one
    releases it.
    """

    def __init__(self, name: str) -> None:
        self.name, self.log, self.result = name, EventLog(), Future[Any]()
        self.result.set_running_or_notify_cancel()  # a client that stops waiting cannot cancel it for the others
        self.holders: set[str] = set()
        self.is_abandoned = False  # its last holder has released it, so the next request starts a new job
        self._stop_requested, self._has_started, self._lock = threading.Event(), False, threading.Lock()

    @property
    def is_over(self) -> bool:
        return self.result.done()

    def stop(self) -> None:
        """End the job at its next progress report, or at once if it has not started."""
        self._stop_requested.set()
        with self._lock:
            was_waiting, self._has_started = not self._has_started, True
        if was_waiting:
            self._end_cancelled()

    def raise_if_stopped(self) -> None:
        if self._stop_requested.is_set():
            raise StopWork

    def progress_callback(self, name: str) -> Callable[[int, int], None]:
        """A progress callback that publishes events under `name` and stops a cancelled job."""
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
        """Run the work. It always ends with one final event and one result."""
        with self._lock:
            already_started, self._has_started = self._has_started, True
        if already_started:
            return
        try:
            self.raise_if_stopped()
            result = work(self)
        except StopWork:
            self._end_cancelled()
        except RheoscopeError as error:
            self._end("error", error, error=error.on("python"))
        except Exception as error:  # an internal error: its text may contain private paths, so only its type is shown
            problem = Message("{job} failed with an internal error ({kind})", job=self.name, kind=type(error).__name__)
            self._end("error", error, error=problem)
        else:
            self.result.set_result(result)
            self.log.publish("done")

    def _end_cancelled(self) -> None:
        self._end("cancelled", CancelledError(Message("this job was cancelled")))

    def _end(self, event: str, exception: Exception, /, **data: Any) -> None:
        self.result.set_exception(exception)
        self.log.publish(event, **data)


class JobQueue:
    """Jobs in lanes. Each lane accepts at most `max_jobs` unfinished jobs."""

    def __init__(self, max_jobs: int) -> None:
        self.max_jobs = max_jobs
        self._lock = threading.Lock()
        self._pools = {
            name: ThreadPoolExecutor(n_threads, f"studio-{name}") for name, n_threads in LANE_THREADS.items()
        }
        self._jobs_by_holder: dict[str, Job] = {}
        self._open_jobs: dict[str, set[Job]] = {name: set() for name in LANE_THREADS}

    def submit(self, lane: str, name: str, work: Callable[[Job], Any]) -> Job:
        """Queue work in a lane."""
        job = Job(name)
        with self._lock:
            if len(self._open_jobs[lane]) >= self.max_jobs:
                raise BusyError(
                    Message("the server is busy: {count} jobs are waiting. Try again soon.", count=self.max_jobs)
                )
            self._open_jobs[lane].add(job)
        job.result.add_done_callback(lambda _: self._remove_open(lane, job))
        self._pools[lane].submit(job.run, work)
        return job

    def _remove_open(self, lane: str, job: Job) -> None:
        with self._lock:
            self._open_jobs[lane].discard(job)

    def add_holder(self, job: Job) -> str:
        """Register a client of a job and return its id. The oldest ids of finished jobs are dropped."""
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
        """The job of a client's id."""
        job = self._jobs_by_holder.get(holder_id)
        if job is None:
            raise MissingError(Message("there is no job {job!r}, or it has expired", job=holder_id[:40]))
        return job

    def release(self, holder_id: str) -> bool:
        """Release a job and return whether it was unfinished. The last release cancels the job."""
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
        """Stop all jobs at their next progress report and shut down the threads."""
        with self._lock:
            jobs = set().union(*self._open_jobs.values())
        for job in jobs:
            job.stop()
        for pool in self._pools.values():
            pool.shutdown()
