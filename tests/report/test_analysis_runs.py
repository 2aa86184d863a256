"""Asking: every analysis gets what it is about, what refuses is left out with its reason, and nothing is drawn in a hurry."""

import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
import torch

import rheoscope as rs
from rheoscope.report import analysis_runs
from rheoscope.report.analysis_runs import Request, Subject, request, run_analyses, run_analysis
from rheoscope.report.report_plans import REPORTS
from rheoscope.space.results import Results
from tests.report.cases import TEXT, model, small, told


def subject(text: str = TEXT) -> Subject:
    return Subject(model(), text, model().trace(text))


def test_an_answer_is_what_the_function_gives() -> None:
    of, trace = small(), small().trace(TEXT)
    for name, found in (
        ("transport", rs.transport(trace, draws=2)),
        ("operators", rs.operators(of.view)),
        ("surgery", rs.surgery(of, TEXT, M="symmetric")),
        ("reversed_attention", rs.reversed_attention(of, trace)),
    ):
        settings = {"transport": {"draws": 2}, "surgery": {"M": "symmetric"}}.get(name, {})
        assert run_analysis(Subject(of, TEXT, trace), name, settings).identical(found), name


def test_answers_grow_and_are_heard_after_each() -> None:
    heard: list[Results] = []
    asks = [Request("trajectory"), request("transport", draws=0), Request("massive_tokens")]
    last = run_analyses(subject(), asks, on_result=heard.append)
    assert [list(one.datasets) for one in heard] == [
        ["trajectory"], ["trajectory", "transport"], ["trajectory", "transport", "massive_tokens"],
    ]  # fmt: skip
    assert heard[-1] is last
    assert last.datasets["transport"].attrs["draws"] == 0
    with pytest.raises(FrozenInstanceError):
        last.datasets = {}  # type: ignore[misc]
    assert "model" not in {field.name for field in fields(last)}  # what has no model cannot run one


def test_one_analysis_is_asked_several_times_under_a_word_each() -> None:
    settings = {"L0.H1": {"layer": 0, "head": 1}, "L2.H3": {"layer": 2, "head": 3}}
    found = run_analyses(subject(), [Request("distorted_pairs", lambda so_far: settings)]).datasets
    assert list(found) == ["distorted_pairs L0.H1", "distorted_pairs L2.H3"]
    assert not found["distorted_pairs L0.H1"].equals(found["distorted_pairs L2.H3"])


def test_settings_are_made_of_what_is_known_so_far() -> None:
    def as_many(so_far: Results) -> dict[str, dict[str, Any]]:
        return {"": {"layer": len(so_far.datasets), "head": 0}}

    found = run_analyses(
        subject(), [Request("trajectory"), Request("energy"), Request("distorted_pairs", as_many)]
    ).datasets
    assert found["distorted_pairs"].attrs["layer"] == 2


def test_what_refuses_is_left_out_with_its_reason() -> None:
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


def test_a_fault_of_the_program_is_no_refusal_and_takes_no_answer_with_it() -> None:
    found = run_analyses(subject(), [request("trajectory", nowhere=1), Request("massive_tokens")])
    assert found.failed_keys == ("trajectory",)
    assert "nowhere" in found.reason("trajectory")
    assert found.reason("trajectory").startswith("internal error (TypeError: ")
    assert found.has("massive_tokens")


def test_progress_is_told_by_name() -> None:
    said: dict[str, list[tuple[int, int]]] = {}

    def tell(name: str) -> Callable[[int, int], None]:
        return lambda done, total: said.setdefault(name, []).append((done, total))

    run_analyses(subject(), [request("agreement", draws=2), Request("massive_tokens")], on_progress=tell)
    assert list(said) == ["agreement"]
    done, total = said["agreement"][-1]
    assert done == total


METHOD = {"frames", "trajectory", "head_types", "fixed_point"}
"""What draws as part of its method, by a fixed seed: the plane of a picture, the tokens of a probe, where an iteration starts."""


def test_in_a_hurry_nothing_is_drawn_for_a_null(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    now = ""

    def heard(name: str) -> Callable[..., Any]:
        make = getattr(torch, name)

        def draw(*given: Any, **more: Any) -> Any:
            made = make(*given, **more)
            drawn.extend([now] * bool(made.numel()))
            return made

        return draw

    def tell(name: str) -> Callable[[int, int], None]:
        nonlocal now
        now = name
        return lambda done, total: None

    for name in ("rand", "randn", "randint", "randperm"):
        monkeypatch.setattr(torch, name, heard(name))
    of = small()
    answers = run_analyses(
        Subject(of, TEXT, of.trace(TEXT)), REPORTS["flow"].requests({}), draw_nulls=False, on_progress=tell
    )
    assert set(drawn) == METHOD
    assert not answers.has_nulls
    assert {name: one.attrs["draws"] for name, one in answers.datasets.items() if one.attrs.get("draws")} == {}
    assert {*answers.datasets, *answers.skipped} == {*told().datasets, *told().skipped}
    drawn.clear()
    run_analyses(
        Subject(of, TEXT, of.trace(TEXT)),
        [request(name, draws=2) for name in ("transport", "agreement")],
        on_progress=tell,
    )
    assert set(drawn) == {"transport", "agreement"}


def test_controls_are_asked_in_the_background_what_they_are_asked_alone() -> None:
    asks = [Request("clusters"), Request("trajectory"), Request("geometry_kept", lambda so_far: {"": {"nearest": 2}})]
    others = [rs.load(untrained=True, seed=seed) for seed in (1, 2)]
    beside = [Subject(one, TEXT, one.trace(TEXT)) for one in others]
    heard: list[int] = []
    answers = run_analyses(
        subject(),
        asks,
        controls=[lambda one=one: one for one in beside],
        on_result=lambda so_far: heard.append(len(so_far.controls)),
    )
    assert heard == [2, 2, 2]
    assert [sorted(one.datasets) for one in answers.controls] == [["clusters", "geometry_kept"]] * 2
    for one, control in zip(beside, answers.controls, strict=True):
        alone = run_analyses(one, asks, draw_nulls=False)
        assert control.datasets["clusters"].identical(alone.datasets["clusters"])
    assert (
        answers.control_values("clusters", lambda d: float(d.type_count))
        == [float(answers.datasets["clusters"].type_count)] * 2
    )


def test_a_control_that_cannot_be_made_says_so_in_one_line() -> None:
    def none() -> Subject:
        raise rs.RheoscopeError("no room for a control")

    told = run_analyses(subject(), [Request("clusters")], controls=[none])
    assert told.has("clusters")
    assert told.reasons == {"untrained control": "no room for a control"}


def test_what_the_second_thread_answers_early_is_what_is_answered_in_turn() -> None:
    """Answers, refusals and their order are the same, whichever thread comes first."""
    one = small()
    own, control = Subject(one, TEXT, one.trace(TEXT)), Subject(one, TEXT, one.trace(TEXT))
    asks = [
        Request("clusters"), request("trajectory", space="nowhere"), Request("purity", clusters_so_far), Request("scores"),
        Request("massive_tokens"), Request("operators"),
    ]  # fmt: skip
    heard: list[list[str]] = []
    both = run_analyses(
        own, asks, controls=[lambda: control], on_result=lambda so_far: heard.append([*so_far.datasets])
    )
    alone = run_analyses(own, asks)
    assert heard[-1] == [*alone.datasets]
    assert len(heard) == len(asks)
    assert both.reasons == alone.reasons
    assert set(both.skipped) == {"trajectory"}
    for name in alone.datasets:
        assert both.datasets[name].identical(alone.datasets[name]), name


def clusters_so_far(so_far: Results) -> dict[str, Any]:
    return {"": {"clusters": so_far.datasets["clusters"], "draws": 3}}


def test_of_a_long_text_controls_are_not_asked_what_is_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    one = small()
    own = Subject(one, TEXT, one.trace(TEXT))
    asks = [Request("clusters"), request("geometry_kept", nearest=2)]
    assert [sorted(c.datasets) for c in run_analyses(own, asks, controls=[lambda: own]).controls] == [
        ["clusters", "geometry_kept"]
    ]
    monkeypatch.setattr(analysis_runs, "LONG_TEXT", len(own.trace or ()) - 1)
    assert [sorted(c.datasets) for c in run_analyses(own, asks, controls=[lambda: own]).controls] == [["clusters"]]


def test_what_is_asked_twice_beside_a_control_has_both_answers() -> None:
    one = small()
    own = Subject(one, TEXT, one.trace(TEXT))
    twice = (
        Request("transport", lambda so_far: {"few": {"draws": 2}}),
        Request("transport", lambda so_far: {"more": {"draws": 3}}),
    )
    found = run_analyses(own, [Request("clusters"), *twice], controls=[lambda: own]).datasets
    assert [found[f"transport {word}"].attrs["draws"] for word in ("few", "more")] == [2, 3]


def test_neither_thread_waits_for_the_other_as_long_as_there_is_something_to_ask() -> None:
    """The second thread is held in an answer until the first has given all others that stand on nothing unknown."""
    one, others = small(), ["trajectory", "scores", "operators", "massive_tokens"]
    own, done = Subject(one, TEXT, one.trace(TEXT)), list[str]()
    begun, free = threading.Event(), threading.Event()

    def by(asked: Subject, name: str, *given: Any) -> Any:
        if name == "clusters":
            begun.set()
            assert free.wait(60)
        assert begun.wait(60)
        found = run_analysis(asked, name, *given)
        done.append(name)
        if sorted(done) == sorted(others):
            free.set()
        return found

    asks = [Request("trajectory"), Request("clusters"), Request("purity", clusters_so_far), *map(Request, others[1:])]
    heard: list[list[str]] = []
    both = run_analyses(
        own, asks, controls=[lambda: own], on_result=lambda so_far: heard.append([*so_far.datasets]), runner=by
    )
    assert done == [*others, "clusters", "purity"]
    assert heard == [[one.name for one in asks[: at + 1]] for at in range(len(asks))]
    for name, dataset in run_analyses(own, asks).datasets.items():
        assert both.datasets[name].identical(dataset), name
