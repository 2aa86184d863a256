"""Jobs: told while they run, cancelled by the last who lets go, refused beyond the limit."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from rheoscope.shapes import RheoscopeError
from rheoscope.studio.jobs import BusyError, CancelledError, Job, JobQueue, MissingError
from rheoscope.studio.server import Studio
from rheoscope.studio.session import Session, TextEntry
from tests.studio.cases import posted, running


@pytest.fixture
def queue() -> Iterator[JobQueue]:
    one = JobQueue(max_jobs=2)
    yield one
    one.close()


def heard(job: Job) -> list[str]:
    async def all_of_it() -> list[str]:
        return [event async for event, _ in job.log.listen()]

    return asyncio.run(all_of_it())


def waiting(gate: threading.Event) -> object:
    def work(job: Job) -> None:
        tell = job.progress_callback("slow")
        while not gate.wait(0.01):
            tell(1, 2)

    return work


def test_what_was_told_is_replayed_to_a_late_listener(queue: JobQueue) -> None:
    job = queue.submit("quick", "one", lambda job: job.progress_callback("part")(2, 2))
    job.result.result(5)
    assert heard(job) == ["progress", "progress", "done"] == heard(job)


def test_a_listener_hears_while_the_work_goes_on(queue: JobQueue) -> None:
    gate = threading.Event()

    def work(job: Job) -> None:
        job.log.publish("known", name="first")
        gate.wait(5)

    job = queue.submit("quick", "one", work)

    async def listen() -> list[str]:
        found = []
        async for event, _ in job.log.listen():
            found.append(event)
            gate.set()
        return found

    assert asyncio.run(asyncio.wait_for(listen(), 5)) == ["known", "done"]


@pytest.mark.parametrize("lane", ["asked", "told"])
def test_one_more_than_the_limit_is_refused_and_later_not(queue: JobQueue, lane: str) -> None:
    gate = threading.Event()
    jobs = [queue.submit(lane, "one", waiting(gate)) for _ in range(2)]  # type: ignore[arg-type]
    with pytest.raises(BusyError, match="2 jobs are waiting"):
        queue.submit(lane, "three", waiting(gate))  # type: ignore[arg-type]
    gate.set()
    for job in jobs:
        job.result.result(5)
    queue.submit(lane, "three", waiting(gate)).result.result(5)  # type: ignore[arg-type]


def test_the_last_who_lets_go_cancels(queue: JobQueue) -> None:
    gate = threading.Event()
    job = queue.submit("asked", "shared", waiting(gate))  # type: ignore[arg-type]
    first, second = queue.add_holder(job), queue.add_holder(job)
    assert queue.release(first)
    assert not queue.release(first)
    assert not job.is_over
    assert queue.release(second)
    with pytest.raises(CancelledError):
        job.result.result(5)
    assert heard(job)[-1] == "cancelled"


def test_work_that_waits_in_line_is_cancelled_before_it_begins(queue: JobQueue) -> None:
    gate = threading.Event()
    first = queue.submit("asked", "first", waiting(gate))  # type: ignore[arg-type]
    second = queue.submit("asked", "second", lambda job: pytest.fail("it began"))
    queue.release(queue.add_holder(second))
    assert second.is_over
    third = queue.submit("asked", "third", lambda job: "there is room again")
    gate.set()
    first.result.result(5)
    assert third.result.result(5) == "there is room again"
    assert heard(second) == ["cancelled"]
    with pytest.raises(CancelledError):
        second.result.result(5)


def test_an_error_is_one_line_and_a_fault_shows_no_inside(queue: JobQueue) -> None:
    def refuse(job: Job) -> None:
        raise RheoscopeError("type another text")

    def fail(job: Job) -> None:
        raise KeyError("secret")

    for work, line in ((refuse, "type another text"), (fail, "one failed inside the server (KeyError)")):
        job = queue.submit("quick", "one", work)
        assert job.result.exception(5) is not None
        heard(job)
        assert job.log.events[-1] == ("error", {"error": line})


def test_a_job_that_nobody_has_is_missing(queue: JobQueue) -> None:
    with pytest.raises(MissingError):
        queue.get_job("nothing")
    assert not queue.release("nothing")


def test_jobs_that_are_over_are_forgotten(queue: JobQueue) -> None:
    names = []
    for _ in range(20):
        job = queue.submit("quick", "one", lambda job: None)
        job.result.result(5)
        names.append(queue.add_holder(job))
    assert queue.get_job(names[-1]).is_over
    with pytest.raises(MissingError):
        queue.get_job(names[0])


def test_who_stops_waiting_leaves_nothing_behind() -> None:
    """Work whose last reader is gone ends in a fault that nobody waits for: no line in the log of the server."""
    begun, gate, told = threading.Event(), threading.Event(), []
    gc.freeze()  # what was there before is not looked through below

    class Gone:
        query_params: ClassVar[dict[str, str]] = {}

        async def is_disconnected(self) -> bool:
            return begun.wait(5)

    async def visit(studio: Studio, entry: TextEntry) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["message"]))
        reason = ""
        try:
            await studio.analysis_result(entry.id, "trajectory", Gone())  # type: ignore[arg-type]
        except CancelledError as error:
            reason = str(error)
        assert "nobody waits" in reason
        (job,) = studio.session._running_jobs.values()
        gate.set()
        while not job.is_over:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)  # its end is told to this loop too
        assert isinstance(job.result.exception(), CancelledError)
        del job
        studio.session.queue._jobs_by_holder.clear()  # as the oldest are forgotten
        gc.collect()

    def slowly(self: Session, entry: TextEntry, name: str, settings: Any, job: Job) -> None:
        begun.set()
        gate.wait(10)
        job.raise_if_stopped()

    with running() as (session, client), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "_run_analysis", slowly)
        entry = session.get_entry(posted(client))
        asyncio.run(visit(Studio(session, None, None), entry))
    assert told == []
