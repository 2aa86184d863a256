"""Analyses of a streamed model in one shared pass: the results of one after the other, with fewer reads."""

from collections import Counter
from typing import Any

import pytest

from rheoscope.report.analysis_runs import Request, RunRequest, Subject, empty_results, run_analyses, run_in_turn
from rheoscope.report.report_settings import report_request
from rheoscope.report.run_report import choose_schedule
from rheoscope.report.shared_pass import share_passes
from rheoscope.running import streamed_weights
from rheoscope.running.streamed_weights import weights_of
from rheoscope.space.results import Results
from tests.pretrained.cases import text
from tests.running.streamed_cases import deep_streamed, resident, streamed

NAMES = ("trajectory", "scores", "head_statistics", "operators", "massive_tokens")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[int | None]:
    """How many bytes of each block are read."""
    counts: Counter[int | None] = Counter()
    read_into = streamed_weights._read_into

    def count(future: Any, weight: Any) -> None:
        read_into(future, weight)
        counts[weight.block] += weight.n_bytes

    monkeypatch.setattr(streamed_weights, "_read_into", count)
    return counts


def test_a_shared_pass_gives_the_same_results_and_reads_less(reads: Counter[int | None]) -> None:
    model = deep_streamed()
    weights = weights_of(model.network)
    assert weights is not None
    requests, results, bytes_read = [report_request(name) for name in NAMES], [], []
    for schedule in (run_in_turn, share_passes(weights)):
        weights.drop_all()
        reads.clear()
        results.append(run_analyses(Subject(model, text(), model.trace(text())), requests, schedule=schedule))
        bytes_read.append(sum(count for block, count in reads.items() if block is not None))
    assert list(results[0].datasets) == list(results[1].datasets) == list(NAMES)
    assert all(results[0].datasets[name].equals(results[1].datasets[name]) for name in NAMES)
    assert bytes_read[1] <= 0.75 * bytes_read[0]
    assert weights.turns is None


def test_requests_wait_for_others_and_runs_of_the_model_come_last() -> None:
    model, order = streamed("llama"), list[str]()
    weights = weights_of(model.network)
    assert weights is not None

    def run(request: Request, results: Results) -> Results:
        order.append(request.name)
        if request.name == "purity":
            assert list(results.datasets) == ["clusters"]
        return results.with_result(request.name, request.name)  # type: ignore[arg-type]

    requests = [
        Request("surgery", waits_for=()),
        Request("clusters", waits_for=()),
        Request("purity", waits_for=("clusters",)),
        Request("energy", waits_for=("surgery",)),
        Request("trajectory"),
    ]
    first = empty_results(Subject(model, text(), model.trace(text())), draw_nulls=True)
    schedule: Any = share_passes(weights)
    run_request: RunRequest = run
    *_, last = schedule(run_request, requests, first)
    assert list(last.datasets) == [request.name for request in requests]
    assert order == ["clusters", "purity", "surgery", "energy", "trajectory"]


def test_only_streamed_models_share_passes() -> None:
    trace = streamed("llama").trace(text())
    assert choose_schedule(streamed("llama"), trace) not in (run_in_turn, None)
    assert choose_schedule(streamed("llama"), None) is run_in_turn
    assert choose_schedule(resident("llama"), None) is run_in_turn
