"""Analyses in two lanes give the results of analyses one after the other, in the same order."""

from dataclasses import replace
from threading import Barrier, get_ident

import pytest
import torch

from rheoscope.flow.clusters.analysis import CLUSTERS
from rheoscope.messages.catalogue import current_language, use_language
from rheoscope.report.analysis_lanes import N_LANES, has_lanes, run_in_lanes
from rheoscope.report.analysis_runs import Request, Subject, empty_results, run_analyses, run_analysis
from rheoscope.report.report_settings import report_request
from rheoscope.space.results import Results
from tests.report.cases import TEXT, small

NAMES = ("trajectory", "clusters", "purity", "massive_tokens", "operators")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(N_LANES)
    yield
    torch.set_num_threads(before)


def subject() -> Subject:
    return Subject(small(), TEXT, small().trace(TEXT))


@pytest.mark.usefixtures("two_threads")
def test_lanes_give_the_results_of_one_analysis_after_the_other() -> None:
    requests, calls = [report_request(name) for name in NAMES], list[Results]()
    expected = run_analyses(subject(), requests)
    results = run_analyses(subject(), requests, on_result=calls.append, schedule=run_in_lanes)
    assert list(results.datasets) == list(expected.datasets) == list(NAMES)
    assert [list(item.datasets) for item in calls] == [list(NAMES[: n + 1]) for n in range(len(NAMES))]
    for name in NAMES:
        torch.testing.assert_close(
            {key: torch.as_tensor(x.values) for key, x in results.datasets[name].items() if x.dtype.kind in "fi"},
            {key: torch.as_tensor(x.values) for key, x in expected.datasets[name].items() if x.dtype.kind in "fi"},
            equal_nan=True,
        )
    assert torch.get_num_threads() == N_LANES


@pytest.mark.usefixtures("two_threads")
def test_independent_requests_run_at_the_same_time_and_others_wait() -> None:
    meeting, seen = Barrier(N_LANES), dict[str, set[str]]()

    def run(request: Request, results: Results) -> Results:
        seen[request.name] = set(results.datasets)
        if request.name in ("a", "b"):
            meeting.wait(timeout=20)  # raises unless both are in a lane
        return results.with_result(request.name, request.name)  # type: ignore[arg-type]

    first = empty_results(subject(), draw_nulls=True)
    requests = [Request("a", waits_for=()), Request("b", waits_for=()), Request("c", waits_for=("a",)), Request("d")]
    *_, last = run_in_lanes(run, requests, first)
    assert list(last.datasets) == ["a", "b", "c", "d"]
    assert seen["c"] == {"a"}
    assert seen["d"] == {"a", "b", "c"}


@pytest.mark.usefixtures("two_threads")
def test_lanes_keep_the_language_and_skip_what_fails() -> None:
    threads, languages = set[int](), set[str]()

    def runner(of: Subject, name: str, *arguments):
        threads.add(get_ident())
        languages.add(current_language())
        if name == "purity":
            raise ValueError("broken")
        return run_analysis(of, name, *arguments)

    with use_language("zh"):
        results = run_analyses(
            subject(), [report_request(name) for name in NAMES], runner=runner, schedule=run_in_lanes
        )
    assert languages == {"zh"}
    assert get_ident() not in threads
    assert results.failed_keys == ("purity",)
    assert list(results.datasets) == [name for name in NAMES if name != "purity"]


def test_a_report_request_waits_for_what_its_analysis_declares() -> None:
    assert report_request("purity").waits_for == (CLUSTERS.name,)
    assert report_request("clusters").waits_for == ()
    assert Request("purity").waits_for is None


@pytest.mark.usefixtures("two_threads")
def test_only_short_texts_with_two_cores_have_lanes() -> None:
    trace = small().trace(TEXT)
    assert has_lanes(trace)
    assert not has_lanes(None)
    assert not has_lanes(replace(trace, tokens=trace.tokens * 300))
    torch.set_num_threads(1)
    assert not has_lanes(trace)
