"""Asking: every analysis gets what it is about, what refuses is left out with its reason, and nothing is drawn in a hurry."""

import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
import torch

import rheoscope as rs
from rheoscope.report import run_analyses
from rheoscope.report.report_plans import JOBS
from rheoscope.report.run_analyses import Ask, Subject, answer, ask, with_settings
from rheoscope.space.results import Answers
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
        assert answer(Subject(of, TEXT, trace), name, settings).identical(found), name


def test_answers_grow_and_are_heard_after_each() -> None:
    heard: list[Answers] = []
    asks = [Ask("trajectory"), with_settings("transport", draws=0), Ask("massive_tokens")]
    last = ask(subject(), asks, hear=heard.append)
    assert [list(one.found) for one in heard] == [
        ["trajectory"], ["trajectory", "transport"], ["trajectory", "transport", "massive_tokens"],
    ]  # fmt: skip
    assert heard[-1] is last
    assert last.found["transport"].attrs["draws"] == 0
    with pytest.raises(FrozenInstanceError):
        last.found = {}  # type: ignore[misc]
    assert "model" not in {field.name for field in fields(last)}  # what has no model cannot run one


def test_one_analysis_is_asked_several_times_under_a_word_each() -> None:
    settings = {"L0.H1": {"layer": 0, "head": 1}, "L2.H3": {"layer": 2, "head": 3}}
    found = ask(subject(), [Ask("distorted_pairs", lambda so_far: settings)]).found
    assert list(found) == ["distorted_pairs L0.H1", "distorted_pairs L2.H3"]
    assert not found["distorted_pairs L0.H1"].equals(found["distorted_pairs L2.H3"])


def test_settings_are_made_of_what_is_known_so_far() -> None:
    def as_many(so_far: Answers) -> dict[str, dict[str, Any]]:
        return {"": {"layer": len(so_far.found), "head": 0}}

    found = ask(subject(), [Ask("trajectory"), Ask("energy"), Ask("distorted_pairs", as_many)]).found
    assert found["distorted_pairs"].attrs["layer"] == 2


def test_what_refuses_is_left_out_with_its_reason() -> None:
    def refuse(so_far: Answers) -> dict[str, dict[str, Any]]:
        raise rs.RheoscopeError("it has nothing to stand on")

    asks = [Ask("clusters"), Ask("score_attribution", refuse), Ask("trajectory")]
    last = ask(subject("a"), asks)
    assert list(last.found) == ["trajectory"]
    assert last.left_out["clusters"].startswith("this needs at least 3 tokens")
    assert last.left_out["score_attribution"] == "it has nothing to stand on"
    assert last.asked("clusters", "trajectory")
    assert last.knows("trajectory")
    assert not last.knows("clusters", "trajectory")
    assert not last.asked("energy")


def test_a_fault_of_the_program_is_no_refusal_and_takes_no_answer_with_it() -> None:
    found = ask(subject(), [with_settings("trajectory", nowhere=1), Ask("massive_tokens")])
    assert found.failed == ("trajectory",)
    assert "nowhere" in found.left_out["trajectory"]
    assert found.left_out["trajectory"].startswith("a fault of the program (TypeError: ")
    assert found.knows("massive_tokens")


def test_progress_is_told_by_name() -> None:
    said: dict[str, list[tuple[int, int]]] = {}

    def tell(name: str) -> Callable[[int, int], None]:
        return lambda done, total: said.setdefault(name, []).append((done, total))

    ask(subject(), [with_settings("agreement", draws=2), Ask("massive_tokens")], tell=tell)
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
    answers = ask(Subject(of, TEXT, of.trace(TEXT)), JOBS["flow"].asks({}), nulls=False, tell=tell)
    assert set(drawn) == METHOD
    assert not answers.nulls
    assert {name: one.attrs["draws"] for name, one in answers.found.items() if one.attrs.get("draws")} == {}
    assert {*answers.found, *answers.left_out} == {*told().found, *told().left_out}
    drawn.clear()
    ask(
        Subject(of, TEXT, of.trace(TEXT)),
        [with_settings(name, draws=2) for name in ("transport", "agreement")],
        tell=tell,
    )
    assert set(drawn) == {"transport", "agreement"}


def test_controls_are_asked_in_the_background_what_they_are_asked_alone() -> None:
    asks = [Ask("clusters"), Ask("trajectory"), Ask("geometry_kept", lambda so_far: {"": {"nearest": 2}})]
    others = [rs.load(untrained=True, seed=seed) for seed in (1, 2)]
    beside = [Subject(one, TEXT, one.trace(TEXT)) for one in others]
    heard: list[int] = []
    answers = ask(
        subject(),
        asks,
        controls=[lambda one=one: one for one in beside],
        hear=lambda so_far: heard.append(len(so_far.controls)),
    )
    assert heard == [2, 2, 2]
    assert [sorted(one.found) for one in answers.controls] == [["clusters", "geometry_kept"]] * 2
    for one, control in zip(beside, answers.controls, strict=True):
        alone = ask(one, asks, nulls=False)
        assert control.found["clusters"].identical(alone.found["clusters"])
    assert (
        answers.untrained("clusters", lambda d: float(d.type_count))
        == [float(answers.found["clusters"].type_count)] * 2
    )


def test_a_control_that_cannot_be_made_says_so_in_one_line() -> None:
    def none() -> Subject:
        raise rs.RheoscopeError("no room for a control")

    told = ask(subject(), [Ask("clusters")], controls=[none])
    assert told.knows("clusters")
    assert told.left_out == {"the untrained control": "no room for a control"}


def test_what_the_second_thread_answers_early_is_what_is_answered_in_turn() -> None:
    """Answers, refusals and their order are the same, whichever thread comes first."""
    one = small()
    own, control = Subject(one, TEXT, one.trace(TEXT)), Subject(one, TEXT, one.trace(TEXT))
    asks = [
        Ask("clusters"), with_settings("trajectory", space="nowhere"), Ask("purity", clusters_so_far), Ask("scores"),
        Ask("massive_tokens"), Ask("operators"),
    ]  # fmt: skip
    heard: list[list[str]] = []
    both = ask(own, asks, controls=[lambda: control], hear=lambda so_far: heard.append([*so_far.found]))
    alone = ask(own, asks)
    assert heard[-1] == [*alone.found]
    assert len(heard) == len(asks)
    assert both.left_out == alone.left_out
    assert set(both.left_out) == {"trajectory"}
    for name in alone.found:
        assert both.found[name].identical(alone.found[name]), name


def clusters_so_far(so_far: Answers) -> dict[str, Any]:
    return {"": {"clusters": so_far.found["clusters"], "draws": 3}}


def test_of_a_long_text_controls_are_not_asked_what_is_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    one = small()
    own = Subject(one, TEXT, one.trace(TEXT))
    asks = [Ask("clusters"), with_settings("geometry_kept", nearest=2)]
    assert [sorted(c.found) for c in ask(own, asks, controls=[lambda: own]).controls] == [["clusters", "geometry_kept"]]
    monkeypatch.setattr(run_analyses, "LONG", len(own.trace or ()) - 1)
    assert [sorted(c.found) for c in ask(own, asks, controls=[lambda: own]).controls] == [["clusters"]]


def test_what_is_asked_twice_beside_a_control_has_both_answers() -> None:
    one = small()
    own = Subject(one, TEXT, one.trace(TEXT))
    twice = (
        Ask("transport", lambda so_far: {"few": {"draws": 2}}),
        Ask("transport", lambda so_far: {"more": {"draws": 3}}),
    )
    found = ask(own, [Ask("clusters"), *twice], controls=[lambda: own]).found
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
        found = answer(asked, name, *given)
        done.append(name)
        if sorted(done) == sorted(others):
            free.set()
        return found

    asks = [Ask("trajectory"), Ask("clusters"), Ask("purity", clusters_so_far), *map(Ask, others[1:])]
    heard: list[list[str]] = []
    both = ask(own, asks, controls=[lambda: own], hear=lambda so_far: heard.append([*so_far.found]), by=by)
    assert done == [*others, "clusters", "purity"]
    assert heard == [[one.name for one in asks[: at + 1]] for at in range(len(asks))]
    for name, dataset in ask(own, asks).found.items():
        assert both.found[name].identical(dataset), name
