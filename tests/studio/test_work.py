"""Jobs: told while they run, cancelled by the last who lets go, refused beyond the limit."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from rheoscope.shapes import RheoscopeError
from rheoscope.studio.work import BusyError, CancelledError, Job, MissingError, Queue


@pytest.fixture
def queue() -> Iterator[Queue]:
    one = Queue(limit=2)
    yield one
    one.close()


def heard(job: Job) -> list[str]:
    async def all_of_it() -> list[str]:
        return [event async for event, _ in job.log.listen()]

    return asyncio.run(all_of_it())


def waiting(gate: threading.Event) -> object:
    def work(job: Job) -> None:
        tell = job.progress("slow")
        while not gate.wait(0.01):
            tell(1, 2)

    return work


def test_what_was_told_is_replayed_to_a_late_listener(queue: Queue) -> None:
    job = queue.begin("quick", "one", lambda job: job.progress("part")(2, 2))
    job.result.result(5)
    assert heard(job) == ["progress", "progress", "done"] == heard(job)


def test_a_listener_hears_while_the_work_goes_on(queue: Queue) -> None:
    gate = threading.Event()

    def work(job: Job) -> None:
        job.log.tell("known", name="first")
        gate.wait(5)

    job = queue.begin("quick", "one", work)

    async def listen() -> list[str]:
        found = []
        async for event, _ in job.log.listen():
            found.append(event)
            gate.set()
        return found

    assert asyncio.run(asyncio.wait_for(listen(), 5)) == ["known", "done"]


@pytest.mark.parametrize("lane", ["asked", "told"])
def test_one_more_than_the_limit_is_refused_and_later_not(queue: Queue, lane: str) -> None:
    gate = threading.Event()
    jobs = [queue.begin(lane, "one", waiting(gate)) for _ in range(2)]  # type: ignore[arg-type]
    with pytest.raises(BusyError, match="2 jobs are waiting"):
        queue.begin(lane, "three", waiting(gate))  # type: ignore[arg-type]
    gate.set()
    for job in jobs:
        job.result.result(5)
    queue.begin(lane, "three", waiting(gate)).result.result(5)  # type: ignore[arg-type]


def test_the_last_who_lets_go_cancels(queue: Queue) -> None:
    gate = threading.Event()
    job = queue.begin("asked", "shared", waiting(gate))  # type: ignore[arg-type]
    first, second = queue.hold(job), queue.hold(job)
    assert queue.release(first)
    assert not queue.release(first)
    assert not job.over
    assert queue.release(second)
    with pytest.raises(CancelledError):
        job.result.result(5)
    assert heard(job)[-1] == "cancelled"


def test_work_that_waits_in_line_is_cancelled_before_it_begins(queue: Queue) -> None:
    gate = threading.Event()
    first = queue.begin("asked", "first", waiting(gate))  # type: ignore[arg-type]
    second = queue.begin("asked", "second", lambda job: pytest.fail("it began"))
    queue.release(queue.hold(second))
    gate.set()
    first.result.result(5)
    with pytest.raises(CancelledError):
        second.result.result(5)


def test_an_error_is_one_line_and_a_fault_shows_no_inside(queue: Queue) -> None:
    def refuse(job: Job) -> None:
        raise RheoscopeError("type another text")

    def fail(job: Job) -> None:
        raise KeyError("secret")

    for work, line in ((refuse, "type another text"), (fail, "one failed inside the server (KeyError)")):
        job = queue.begin("quick", "one", work)
        assert job.result.exception(5) is not None
        heard(job)
        assert job.log.told[-1] == ("error", {"error": line})


def test_a_job_that_nobody_has_is_missing(queue: Queue) -> None:
    with pytest.raises(MissingError):
        queue.job("nothing")
    assert not queue.release("nothing")


def test_jobs_that_are_over_are_forgotten(queue: Queue) -> None:
    names = []
    for _ in range(20):
        job = queue.begin("quick", "one", lambda job: None)
        job.result.result(5)
        names.append(queue.hold(job))
    assert queue.job(names[-1]).over
    with pytest.raises(MissingError):
        queue.job(names[0])
