"""Jobs: events while they run, cancellation by the last release, and the limit of a lane."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from rheoscope.shapes import RheoscopeError
from rheoscope.studio.jobs import BusyError, CancelledError, Job, JobQueue, MissingError
from rheoscope.studio.served_state import Studio
from rheoscope.studio.session import Session, TextEntry
from tests.studio.cases import post_text, running_studio


@pytest.fixture
def queue() -> Iterator[JobQueue]:
    job_queue = JobQueue(max_jobs=2)
    yield job_queue
    job_queue.close()


def event_names(job: Job) -> list[str]:
    async def collect() -> list[str]:
        return [event async for event, _ in job.log.listen()]

    return asyncio.run(collect())


def wait_for(gate: threading.Event) -> object:
    def work(job: Job) -> None:
        on_progress = job.progress_callback("slow")
        while not gate.wait(0.01):
            on_progress(1, 2)

    return work


def test_a_late_listener_receives_all_events(queue: JobQueue) -> None:
    job = queue.submit("quick", "one", lambda job: job.progress_callback("part")(2, 2))
    job.result.result(5)
    assert event_names(job) == ["progress", "progress", "done"] == event_names(job)


def test_a_listener_receives_events_while_the_job_runs(queue: JobQueue) -> None:
    gate = threading.Event()

    def work(job: Job) -> None:
        job.log.publish("known", name="first")
        gate.wait(5)

    job = queue.submit("quick", "one", work)

    async def listen() -> list[str]:
        events = []
        async for event, _ in job.log.listen():
            events.append(event)
            gate.set()
        return events

    assert asyncio.run(asyncio.wait_for(listen(), 5)) == ["known", "done"]


@pytest.mark.parametrize("lane", ["analysis", "story"])
def test_a_full_lane_refuses_jobs_until_others_finish(queue: JobQueue, lane: str) -> None:
    gate = threading.Event()
    jobs = [queue.submit(lane, "one", wait_for(gate)) for _ in range(2)]  # type: ignore[arg-type]
    with pytest.raises(BusyError, match="2 jobs are waiting"):
        queue.submit(lane, "three", wait_for(gate))  # type: ignore[arg-type]
    gate.set()
    for job in jobs:
        job.result.result(5)
    queue.submit(lane, "three", wait_for(gate)).result.result(5)  # type: ignore[arg-type]


def test_the_last_release_cancels_the_job(queue: JobQueue) -> None:
    gate = threading.Event()
    job = queue.submit("analysis", "shared", wait_for(gate))  # type: ignore[arg-type]
    first, second = queue.add_holder(job), queue.add_holder(job)
    assert queue.release(first)
    assert not queue.release(first)
    assert not job.is_over
    assert queue.release(second)
    with pytest.raises(CancelledError):
        job.result.result(5)
    assert event_names(job)[-1] == "cancelled"


def test_a_waiting_job_is_cancelled_before_it_starts(queue: JobQueue) -> None:
    gate = threading.Event()
    first = queue.submit("analysis", "first", wait_for(gate))  # type: ignore[arg-type]
    second = queue.submit("analysis", "second", lambda job: pytest.fail("the cancelled job started"))
    queue.release(queue.add_holder(second))
    assert second.is_over
    third = queue.submit("analysis", "third", lambda job: "third")
    gate.set()
    first.result.result(5)
    assert third.result.result(5) == "third"
    assert event_names(second) == ["cancelled"]
    with pytest.raises(CancelledError):
        second.result.result(5)


def test_an_internal_error_shows_only_its_type(queue: JobQueue) -> None:
    def refuse(job: Job) -> None:
        raise RheoscopeError("type another text")

    def fail(job: Job) -> None:
        raise KeyError("secret")

    for work, line in ((refuse, "type another text"), (fail, "one failed with an internal error (KeyError)")):
        job = queue.submit("quick", "one", work)
        assert job.result.exception(5) is not None
        event_names(job)
        assert job.log.events[-1] == ("error", {"error": line})


def test_an_unknown_job_is_missing(queue: JobQueue) -> None:
    with pytest.raises(MissingError):
        queue.get_job("nothing")
    assert not queue.release("nothing")


def test_old_finished_jobs_are_dropped(queue: JobQueue) -> None:
    names = []
    for _ in range(20):
        job = queue.submit("quick", "one", lambda job: None)
        job.result.result(5)
        names.append(queue.add_holder(job))
    assert queue.get_job(names[-1]).is_over
    with pytest.raises(MissingError):
        queue.get_job(names[0])


def test_a_disconnected_client_leaves_no_logged_exception() -> None:
    """The exception of a job without clients is not logged by asyncio."""
    started, gate, logged = threading.Event(), threading.Event(), []
    gc.freeze()  # earlier objects are excluded from the collection below

    class DisconnectedRequest:
        query_params: ClassVar[dict[str, str]] = {}

        async def receive(self) -> dict[str, str]:
            started.wait(5)
            return {"type": "http.disconnect"}

    async def visit(studio: Studio, entry: TextEntry) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context["message"]))
        reason = ""
        try:
            await studio.analysis_result(entry.id, "trajectory", DisconnectedRequest())  # type: ignore[arg-type]
        except CancelledError as error:
            reason = str(error)
        assert "has disconnected" in reason
        (job,) = studio.session._running_jobs.values()
        gate.set()
        while not job.is_over:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)  # this loop is notified of the end too
        assert isinstance(job.result.exception(), CancelledError)
        del job
        studio.session.queue._jobs_by_holder.clear()  # as happens to old ids
        gc.collect()

    def run_slowly(self: Session, entry: TextEntry, name: str, settings: Any, job: Job) -> None:
        started.set()
        gate.wait(10)
        job.raise_if_stopped()

    with running_studio() as (session, client), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "_run_analysis", run_slowly)
        entry = session.get_entry(post_text(client))
        asyncio.run(visit(Studio(session, None, None, None), entry))
    assert logged == []
