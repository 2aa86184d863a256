"""Texts do not wait for each other: jobs take turns, quick requests go first, and abandoned jobs end."""

import itertools
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rheoscope.studio import job_turns, jobs
from rheoscope.studio.jobs import CancelledError, Job, JobQueue
from rheoscope.studio.session import Session, TextEntry
from tests.studio.cases import parse_events, post_text, running_studio


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[JobQueue]:
    """A queue whose turns end at every progress report. Its clock counts how often it is read."""
    monkeypatch.setattr(job_turns, "TURN_SECONDS", -1.0)
    monkeypatch.setattr(job_turns, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    job_queue = JobQueue(max_jobs=8)
    yield job_queue
    job_queue.close()


def record_progress(names: list[str], name: str, n_reports: int, gate: threading.Event) -> Callable[[Job], None]:
    def work(job: Job) -> None:
        gate.wait(5)
        on_progress = job.progress_callback(name)
        for index in range(n_reports):
            names.append(name)
            on_progress(index, n_reports)

    return work


def test_a_short_job_does_not_wait_for_the_end_of_a_long_one(queue: JobQueue) -> None:
    names: list[str] = []
    gate = threading.Event()
    long = queue.submit("story", "long", record_progress(names, "long", 50, gate))
    short = queue.submit("story", "short", record_progress(names, "short", 3, gate))
    gate.set()
    for job in (short, long):
        job.result.result(5)
    assert (names.count("long"), names.count("short")) == (50, 3)
    last_short = len(names) - names[::-1].index("short")
    assert names[:last_short].count("long") < 10


def test_at_most_one_job_of_a_lane_computes(queue: JobQueue) -> None:
    n_running, most = 0, 0

    def work(job: Job) -> None:
        nonlocal n_running, most
        on_progress = job.progress_callback("work")
        for index in range(5):
            n_running += 1
            most = max(most, n_running)
            n_running -= 1
            on_progress(index, 5)

    for job in [queue.submit("analysis", "work", work) for _ in range(6)]:
        job.result.result(5)
    assert most == 1


def test_few_analyses_are_paused_in_the_middle(queue: JobQueue) -> None:
    """Each paused analysis keeps its arrays in memory."""
    inside: set[str] = set()
    most = 0

    def analyse(name: str) -> Callable[[Job], None]:
        def work(job: Job) -> None:
            nonlocal most
            on_progress = job.progress_callback(name)
            inside.add(name)
            most = max(most, len(inside))
            for index in range(4):
                on_progress(index, 4)
            inside.discard(name)

        return work

    for job in [queue.submit("analysis", str(index), analyse(str(index))) for index in range(8)]:
        job.result.result(5)
    assert most <= job_turns.MAX_PAUSED_ANALYSES + 1


def test_a_job_that_waits_for_its_turn_can_be_stopped(queue: JobQueue) -> None:
    second_runs, first_computes, gate = threading.Event(), threading.Event(), threading.Event()

    def run_first(job: Job) -> None:
        while not second_runs.wait(0.001):
            job.checkpoint()
        first_computes.set()  # it has the turn, and the second job waits
        gate.wait(5)

    def run_second(job: Job) -> None:
        second_runs.set()
        while True:
            job.checkpoint()

    first = queue.submit("story", "first", run_first)
    second = queue.submit("story", "second", run_second)
    assert first_computes.wait(5)
    queue.release(queue.add_holder(second))
    assert isinstance(second.result.exception(5), CancelledError)
    gate.set()
    first.result.result(5)


def test_cheap_quick_requests_run_first(queue: JobQueue) -> None:
    gate, order = threading.Event(), list[int]()
    blocking = [queue.submit_quick(1000, lambda job: gate.wait(5)) for _ in range(jobs.LANE_THREADS["quick"])]
    waiting = [queue.submit_quick(cost, lambda job, cost=cost: order.append(cost)) for cost in (900, 600, 800)]  # type: ignore[misc]
    assert queue.submit_quick(10, lambda job: "short").result.result(5) == "short"  # in a lane of its own
    gate.set()
    for job in [*blocking, *waiting]:
        job.result.result(5)
    assert order[0] == 600


def test_analyses_pause_while_quick_requests_run(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_turns, "MAX_WAIT_FOR_QUICK_WORK", 5.0)
    quick_started, quick_gate, order = threading.Event(), threading.Event(), list[str]()

    def run_quick(job: Job) -> None:
        quick_started.set()
        quick_gate.wait(5)
        order.append("quick")

    def analyse(job: Job) -> None:
        quick_started.wait(5)
        threading.Timer(0.02, quick_gate.set).start()
        job.checkpoint()
        order.append("analysis")

    analysis = queue.submit("analysis", "analysis", analyse)
    queue.submit_quick(10, run_quick).result.result(5)
    analysis.result.result(5)
    assert order == ["quick", "analysis"]


def test_an_abandoned_job_ends_and_a_followed_job_does_not(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LEASE_SECONDS", -1.0)
    job = Job("story")
    job.renew()
    with job.followed():
        job.checkpoint()
    with pytest.raises(jobs.StopWork):
        job.checkpoint()
    assert job.has_expired


def test_the_description_of_a_text_does_not_wait_for_analyses() -> None:
    """The first event of a text is there while the analyses of another text run."""
    gate, started = threading.Event(), threading.Event()

    def run_slowly(self: Session, entry: TextEntry, names: Any, job: Job) -> None:
        started.set()
        gate.wait(10)

    with running_studio() as (session, client), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "_run_story", run_slowly)
        client.post("/api/traces", json={"text": "One text"})
        assert started.wait(5)
        second = client.post("/api/traces", json={"text": "Another text"}).json()
        entry = session.get_entry(second["id"])
        assert entry.job is not None
        assert [(name, data["text"]) for name, data in entry.job.log.events] == [("head", "Another text")]
        assert client.get(f"/api/traces/{second['id']}/points").status_code == 200
        gate.set()


def test_an_expired_job_starts_again_for_its_next_client(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_studio() as (session, client):
        trace = post_text(client)
        entry = session.get_entry(trace)
        assert entry.job is not None
        entry.job.result.result(5)
        entry.job.has_expired = True
        monkeypatch.setattr(Session, "_run_story", lambda *arguments: None)
        events = parse_events(client.get(f"/api/traces/{trace}/events").text)
        assert [name for name, _ in events] == ["head", "done"]
        assert not entry.job.has_expired
