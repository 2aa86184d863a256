"""Background jobs: queued in lanes, with an event log, cancellation, expiry and a limit on the queue."""

import asyncio
import heapq
import itertools
import os
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.studio.job_turns import Turns

Event = tuple[str, dict[str, Any]]
"""The name of an event and its data."""
LANE_THREADS = {"loading": 1, "short": 1, "quick": max(1, min(2, (os.cpu_count() or 1) // 2))}
"""Threads of the lanes that load models and serve quick requests. `short` is for the cheapest of them."""
LANE_NICENESS = {"short": 0, "quick": 3, "loading": 6, "analysis": 10, "story": 12}
"""By how much the system prefers other threads. On a busy machine, the first points of a text come before its analyses."""
TURN_LANES = ("analysis", "story")
"""Lanes whose jobs take turns: requested analyses, and the story of each text."""
MAX_SHORT_COST = 400
"""Largest cost of a request in the lane `short`, in bytes of its text."""
SECONDS_PER_COST = 0.002
"""Seconds by which a quick request lets later requests pass, per byte of its text. So a long text is never passed for ever."""
LEASE_SECONDS = 10.0
"""Seconds after which a job with a lease ends if no client follows it or asks about it."""
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
    releases it. A Job with a lease also ends when no client follows it (`followed`) or asks about it (`renew`).
    """

    def __init__(self, name: str, turns: Turns | None = None) -> None:
        self.name, self.log, self.result, self._turns = name, EventLog(), Future[Any](), turns
        self.result.set_running_or_notify_cancel()  # a client that stops waiting cannot cancel it for the others
        self.holders: set[str] = set()
        self.is_abandoned = False  # its last holder has released it, so the next request starts a new job
        self.has_expired = False  # its lease has ended, so the next client starts it again
        self._n_followers, self._lease_end = 0, float("inf")
        self._stop_requested, self._has_started, self._lock = threading.Event(), False, threading.Lock()

    @property
    def is_over(self) -> bool:
        return self.result.done()

    @property
    def is_stopped(self) -> bool:
        return self._stop_requested.is_set()

    def renew(self) -> None:
        """Start the lease of the job, or extend it."""
        self._lease_end = time.monotonic() + LEASE_SECONDS

    @contextmanager
    def followed(self) -> Iterator[None]:
        """A client follows the job in this block. The lease does not end meanwhile."""
        with self._lock:
            self._n_followers += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_followers -= 1
                if self._lease_end < float("inf"):
                    self.renew()

    def stop(self) -> None:
        """End the job at its next progress report, or at once if it has not started."""
        self._stop_requested.set()
        with self._lock:
            was_waiting, self._has_started = not self._has_started, True
        if was_waiting:
            self._end_cancelled()
        if self._turns is not None:
            self._turns.wake()

    def raise_if_stopped(self) -> None:
        if not self._n_followers and time.monotonic() > self._lease_end:
            self.has_expired = True
            self._stop_requested.set()
        if self.is_stopped:
            raise StopWork

    def checkpoint(self, is_between_analyses: bool = False) -> None:
        """Stop a cancelled job, and let other jobs compute. Running work calls this often."""
        self.raise_if_stopped()
        if self._turns is not None:
            self._turns.pause(self, is_between_analyses)
            self.raise_if_stopped()

    def progress_callback(self, name: str) -> Callable[[int, int], None]:
        """A progress callback that publishes events under `name`, stops a cancelled job and takes turns."""
        self.checkpoint(is_between_analyses=True)
        self.log.publish("progress", name=name, done=0, total=1)
        last_published = time.monotonic()

        def on_progress(done: int, total: int) -> None:
            nonlocal last_published
            self.checkpoint()
            if done == total or time.monotonic() - last_published > PROGRESS_INTERVAL:
                last_published = time.monotonic()
                self.log.publish("progress", name=name, done=done, total=total)

        return on_progress

    def run(self, work: "Callable[[Job], Any]") -> None:
        """Run the work, after its first turn has come. It always ends with one final event and one result."""
        if self._turns is not None:
            self._turns.start(self)
        try:
            self._run(work)
        finally:
            if self._turns is not None:
                self._turns.end(self)

    def _run(self, work: "Callable[[Job], Any]") -> None:
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
            self._end("error", error, error=error.on("page"))
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


def be_nice(niceness: int) -> None:
    """Lower the priority of this thread and of those that it starts. Only Linux has priorities of threads."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


class JobQueue:
    """Jobs in lanes. Each lane accepts at most `max_jobs` unfinished jobs.

    Quick requests run in order of their cost, and short ones have a thread of their own. Analyses take turns (`Turns`), and
    pause while quick requests run.
    """

    def __init__(self, max_jobs: int) -> None:
        self.max_jobs = max_jobs
        self._lock = threading.Lock()
        n_threads_by_lane = LANE_THREADS | dict.fromkeys(TURN_LANES, max_jobs)
        self._pools = {
            name: ThreadPoolExecutor(n_threads, f"studio-{name}", be_nice, (LANE_NICENESS[name],))
            for name, n_threads in n_threads_by_lane.items()
        }
        self._quick_is_idle = threading.Event()
        self._quick_is_idle.set()
        self._turns = {name: Turns(self._quick_is_idle) for name in TURN_LANES}
        self._jobs_by_holder: dict[str, Job] = {}
        self._open_jobs: dict[str, set[Job]] = {name: set() for name in n_threads_by_lane}
        self._waiting_quick: dict[str, list[tuple[float, int, Job, Callable[[Job], Any]]]] = {"short": [], "quick": []}
        self._numbers = itertools.count()

    def submit(self, lane: str, name: str, work: Callable[[Job], Any], first_event: Event | None = None) -> Job:
        """Queue work in a lane. The log starts with `first_event`."""
        job = Job(name, self._turns.get(lane))
        if first_event is not None:
            job.log.publish(first_event[0], **first_event[1])
        self._add_open(lane, job)
        if lane in self._turns:
            self._turns[lane].add(job)
        self._pools[lane].submit(job.run, work)
        return job

    def submit_quick(self, cost: float, work: Callable[[Job], Any]) -> Job:
        """Queue a quick request. Among requests of the same time, the one with the smallest cost runs first."""
        job, lane = Job(Message("quick request")), "short" if cost <= MAX_SHORT_COST else "quick"
        self._add_open(lane, job)
        due = time.monotonic() + SECONDS_PER_COST * cost
        with self._lock:
            heapq.heappush(self._waiting_quick[lane], (due, next(self._numbers), job, work))
        self._pools[lane].submit(self._run_next, lane)
        return job

    def _run_next(self, lane: str) -> None:
        with self._lock:
            _, _, job, work = heapq.heappop(self._waiting_quick[lane])
        job.run(work)

    def _add_open(self, lane: str, job: Job) -> None:
        with self._lock:
            if len(self._open_jobs[lane]) >= self.max_jobs:
                raise BusyError(
                    Message("the server is busy: {count} jobs are waiting. Try again soon.", count=self.max_jobs)
                )
            self._open_jobs[lane].add(job)
            self._note_quick_work()
        job.result.add_done_callback(lambda _: self._remove_open(lane, job))

    def _remove_open(self, lane: str, job: Job) -> None:
        with self._lock:
            self._open_jobs[lane].discard(job)
            self._note_quick_work()

    def _note_quick_work(self) -> None:
        if self._open_jobs["short"] or self._open_jobs["quick"]:
            self._quick_is_idle.clear()
        else:
            self._quick_is_idle.set()

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
        self._quick_is_idle.set()
        with self._lock:
            jobs = set().union(*self._open_jobs.values())
        for job in jobs:
            job.stop()
        for pool in self._pools.values():
            pool.shutdown()
