"""What a public function refuses before it computes: every analysis × every wrong kind of argument, in one line."""

import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import rheoscope as rs
from rheoscope.catalogue import TABLE
from tests.cases import model, network, text

PUBLIC = [*TABLE, "plot", "show", "table", "verdicts", "save_report", "path_weights", "reversed_map", "trace_under"]
RIGHT = {"view": {"view"}, "trace": {"trace"}, "other": {"trace"}, "model": {"model"}, "dataset": {"dataset"},
         "found": {"dataset", "trace"},
         "text": {"text", "ids", "number"}, "texts": {"text", "ids", "number"}}  # fmt: skip
"""Parameter → the kinds that it takes, or that the model itself looks at."""


def values() -> dict[str, Any]:
    """One value of every kind that a user may hold."""
    of = model("own")
    trace = of.trace(text())
    return {
        "model": of, "view": of.view, "trace": trace, "traces": of.trace([text(), text(1)]), "list of traces": [trace, trace],
        "dataset": rs.trajectory(trace), "array": rs.trajectory(trace).speed, "text": "The keys", "ids": text(),
        "network": network("own"), "transformers": network("llama"), "path": Path("here"), "nothing": None, "number": 3,
        "dict": {"a": 1}, "function": rs.trajectory,
    }  # fmt: skip


GIVEN = values()


@pytest.mark.parametrize("name", PUBLIC)
def test_a_wrong_argument_is_told_in_one_line(name: str) -> None:
    function = getattr(rs, name)
    needed = [
        at for at, one in inspect.signature(function).parameters.items() if one.default is one.empty and at in RIGHT
    ]
    assert needed
    for wrong in needed:
        for kind, value in GIVEN.items():
            if kind in RIGHT[wrong] or (wrong in ("text", "texts") and kind in ("array", "dict", "function")):
                continue
            given = {at: GIVEN[next(iter(sorted(RIGHT[at] - {"text", "number"})))] for at in needed} | {wrong: value}
            with pytest.raises(rs.RheoscopeError, match=rf"^rs\.{name} takes .*, got .*; type ") as told:
                function(**given, **rest(name))
            assert "\n" not in str(told.value)
            assert len(str(told.value)) < 160


def rest(name: str) -> dict[str, Any]:
    return {
        "save_report": {"path": "r.html"},
        "path_weights": {"path": []},
        "reversed_map": {"layer": 0, "head": 0},
    }.get(name, {})


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda of, trace: rs.operators(of), "rs.operators takes a View, got a Model; type rs.operators(model.view)"),
        (lambda of, trace: rs.transport(of), "rs.transport takes a Trace, got a Model; type rs.transport(model.trace(text))"),
        (lambda of, trace: rs.transport("The"), "rs.transport takes a Trace, got a text; type rs.transport(model.trace(text))"),
        (lambda of, trace: rs.surgery(of, trace, M="skew"), "rs.surgery takes a text, got a Trace; type text=trace.text"),
        (
            lambda of, trace: rs.fixed_point(network("llama"), trace),
            "rs.fixed_point takes a Model, got a torch module; type rs.fixed_point(rs.load(network, tokenizer=tokenizer), …)",
        ),
        (
            lambda of, trace: rs.agreement(trace, control=of),
            "rs.agreement takes a Trace as control, got a Model; type control=model.trace(text)",
        ),
        (lambda of, trace: rs.plot(trace), "rs.plot takes a Dataset, got a Trace; type rs.plot(rs.trajectory(trace))"),
        (lambda of, trace: rs.transport([trace]), "rs.transport takes a Trace, got several Traces; type rs.transport(traces[0])"),
    ],
)  # fmt: skip
def test_it_says_what_to_type(call: Any, line: str) -> None:
    with pytest.raises(rs.RheoscopeError) as told:
        call(GIVEN["model"], GIVEN["trace"])
    assert str(told.value) == line


def test_what_is_missing_is_told_by_python() -> None:
    with pytest.raises(TypeError, match=r"missing .* argument: 'trace'"):
        rs.transport()


def test_a_setting_left_at_its_default_is_not_looked_at() -> None:
    assert "type" in rs.head_types(GIVEN["model"], trace=None)


def test_public_functions_are_found_again_when_they_are_unpickled() -> None:
    assert pickle.loads(pickle.dumps(rs.transport)) is rs.transport
    assert inspect.signature(rs.transport).parameters.keys() >= {"trace", "space", "grain"}
    assert torch.is_tensor(GIVEN["ids"])
