"""Running analyses: inputs, skipped analyses and progress."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
import torch

import rheoscope as rs
from rheoscope.report.analysis_runs import Request, Subject, request, run_analyses, run_analysis
from rheoscope.report.report_plans import REPORTS
from rheoscope.space.results import Results
from tests.report.cases import TEXT, flow_results, model, small


def subject(text: str = TEXT) -> Subject:
    return Subject(model(), text, model().trace(text))


def test_run_analysis_returns_the_result_of_the_function() -> None:
    of, trace = small(), small().trace(TEXT)
    for name, results in (
        ("transport", rs.transport(trace, draws=2)),
        ("operators", rs.operators(of.view)),
        ("surgery", rs.surgery(of, TEXT, M="symmetric")),
        ("reversed_attention", rs.reversed_attention(of, trace)),
    ):
        settings = {"transport": {"draws": 2}, "surgery": {"M": "symmetric"}}.get(name, {})
        assert run_analysis(Subject(of, TEXT, trace), name, settings).identical(results), name


def test_on_result_gets_the_results_after_each_analysis() -> None:
    calls: list[Results] = []
    asks = [Request("trajectory"), request("transport", draws=0), Request("massive_tokens")]
    last = run_analyses(subject(), asks, on_result=calls.append)
    assert [list(item.datasets) for item in calls] == [
        ["trajectory"], ["trajectory", "transport"], ["trajectory", "transport", "massive_tokens"],
    ]  # fmt: skip
    assert calls[-1] is last
    assert last.datasets["transport"].attrs["draws"] == 0
    with pytest.raises(FrozenInstanceError):
        last.datasets = {}  # type: ignore[misc]
    assert "model" not in {field.name for field in fields(last)}  # what has no model cannot run one


def test_repeated_runs_have_keys_with_suffixes() -> None:
    settings = {"L0.H1": {"layer": 0, "head": 1}, "L2.H3": {"layer": 2, "head": 3}}
    results = run_analyses(subject(), [Request("distorted_pairs", lambda so_far: settings)]).datasets
    assert list(results) == ["distorted_pairs L0.H1", "distorted_pairs L2.H3"]
    assert not results["distorted_pairs L0.H1"].equals(results["distorted_pairs L2.H3"])


def test_settings_can_depend_on_earlier_results() -> None:
    def as_many(so_far: Results) -> dict[str, dict[str, Any]]:
        return {"": {"layer": len(so_far.datasets), "head": 0}}

    results = run_analyses(
        subject(), [Request("trajectory"), Request("energy"), Request("distorted_pairs", as_many)]
    ).datasets
    assert results["distorted_pairs"].attrs["layer"] == 2


def test_analyses_that_raise_are_skipped_with_their_reason() -> None:
    def refuse(so_far: Results) -> dict[str, dict[str, Any]]:
        raise rs.RheoscopeError("it has nothing to stand on")

    asks = [Request("clusters"), Request("score_attribution", refuse), Request("trajectory")]
    last = run_analyses(subject("a"), asks)
    assert list(last.datasets) == ["trajectory"]
    assert last.reason("clusters").startswith("this analysis needs at least 3 tokens")
    assert last.reason("score_attribution") == "it has nothing to stand on"
    assert last.has_run("clusters", "trajectory")
    assert last.has("trajectory")
    assert not last.has("clusters", "trajectory")
    assert not last.has_run("energy")


def test_internal_errors_are_failures_and_other_results_remain() -> None:
    results = run_analyses(subject(), [request("trajectory", nowhere=1), Request("massive_tokens")])
    assert results.failed_keys == ("trajectory",)
    assert "nowhere" in results.reason("trajectory")
    assert results.reason("trajectory").startswith("internal error (TypeError: ")
    assert results.has("massive_tokens")


def test_progress_has_the_name_of_the_analysis() -> None:
    message: dict[str, list[tuple[int, int]]] = {}

    def on_progress(name: str) -> Callable[[int, int], None]:
        return lambda finished, total: message.setdefault(name, []).append((finished, total))

    run_analyses(subject(), [request("agreement", draws=2), Request("massive_tokens")], on_progress=on_progress)
    assert list(message) == ["agreement"]
    finished, total = message["agreement"][-1]
    assert finished == total


METHOD = {"frames", "trajectory", "head_types"}
"""Analyses that sample as part of their method, with a fixed seed."""


def test_fast_runs_sample_no_null(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled: list[str] = []
    now = ""

    def calls(name: str) -> Callable[..., Any]:
        make = getattr(torch, name)

        def draw(*arguments: Any, **more: Any) -> Any:
            built = make(*arguments, **more)
            sampled.extend([now] * bool(built.numel()))
            return built

        return draw

    def on_progress(name: str) -> Callable[[int, int], None]:
        nonlocal now
        now = name
        return lambda finished, total: None

    for name in ("rand", "randn", "randint", "randperm"):
        monkeypatch.setattr(torch, name, calls(name))
    of = small()
    answers = run_analyses(
        Subject(of, TEXT, of.trace(TEXT)), REPORTS["flow"].all_requests({}), draw_nulls=False, on_progress=on_progress
    )
    assert set(sampled) == METHOD
    assert not answers.has_nulls
    assert {name: item.attrs["draws"] for name, item in answers.datasets.items() if item.attrs.get("draws")} == {}
    assert {*answers.datasets, *answers.skipped} == {*flow_results().datasets, *flow_results().skipped}
    sampled.clear()
    run_analyses(
        Subject(of, TEXT, of.trace(TEXT)),
        [request(name, draws=2) for name in ("transport", "agreement")],
        on_progress=on_progress,
    )
    assert set(sampled) == {"transport", "agreement"}
