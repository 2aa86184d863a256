"""Public functions reject every wrong kind of argument before they compute, in one line."""

import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import rheoscope as rs
from rheoscope.catalogue import ANALYSIS_MODULES
from tests.cases import model, network, text

PUBLIC = [
    *ANALYSIS_MODULES,
    "plot",
    "show",
    "table",
    "story",
    "card",
    "save_report",
    "path_weights",
    "reversed_map",
    "trace_under",
]
ACCEPTED_KINDS = {"view": {"view"}, "trace": {"trace"}, "other": {"trace"}, "model": {"model"}, "dataset": {"dataset"},
         "content": {"dataset", "trace"},
         "text": {"text", "ids", "number", "trace", "traces", "list of traces"},
         "texts": {"text", "ids", "number", "trace", "traces", "list of traces"}}  # fmt: skip
"""Parameter → the kinds that it accepts, or that the model itself checks."""


def values() -> dict[str, Any]:
    """One value of every kind that a user may pass."""
    loaded_model = model("own")
    trace = loaded_model.trace(text())
    return {
        "model": loaded_model, "view": loaded_model.view, "trace": trace, "traces": loaded_model.trace([text(), text(1)]),
        "list of traces": [trace, trace],
        "dataset": rs.trajectory(trace), "array": rs.trajectory(trace).speed, "text": "The keys", "ids": text(),
        "network": network("own"), "transformers": network("llama"), "path": Path("here"), "nothing": None, "number": 3,
        "dict": {"a": 1}, "function": rs.trajectory,
    }  # fmt: skip


VALUES = values()


@pytest.mark.parametrize("name", PUBLIC)
def test_wrong_argument_raises_a_line_with_the_correct_call(name: str) -> None:
    function = getattr(rs, name)
    required = [
        parameter_name
        for parameter_name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty and parameter_name in ACCEPTED_KINDS
    ]
    assert required
    for tested in required:
        for kind, value in VALUES.items():
            if kind in ACCEPTED_KINDS[tested] or (
                tested in ("text", "texts") and kind in ("array", "dict", "function")
            ):
                continue
            arguments = {other: VALUES[min(ACCEPTED_KINDS[other] - {"text", "number"})] for other in required} | {
                tested: value
            }
            with pytest.raises(rs.RheoscopeError, match=rf"^rs\.{name} expects .*, got .*; type ") as error:
                function(**arguments, **other_arguments(name))
            assert "\n" not in str(error.value)
            assert len(str(error.value)) < 160


def other_arguments(name: str) -> dict[str, Any]:
    return {
        "save_report": {"path": "r.html"},
        "path_weights": {"path": []},
        "reversed_map": {"layer": 0, "head": 0},
    }.get(name, {})


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda m, trace: rs.operators(m), "rs.operators expects a View, got a Model; type rs.operators(model.view)"),
        (lambda m, trace: rs.transport(m), "rs.transport expects a Trace, got a Model; type rs.transport(model.trace(text))"),
        (lambda m, trace: rs.transport("The"), "rs.transport expects a Trace, got a text; type rs.transport(model.trace(text))"),
        (lambda m, trace: rs.surgery(m, m.view, M="skew"), "rs.surgery expects a text, got a View; type text='a text'"),
        (
            lambda m, trace: rs.fixed_point(network("llama"), trace),
            "rs.fixed_point expects a Model, got a torch module; type rs.fixed_point(rs.load(network, tokenizer=tokenizer), …)",
        ),
        (
            lambda m, trace: rs.agreement(trace, control=m),
            "rs.agreement expects a Trace as control, got a Model; type control=model.trace(text)",
        ),
        (lambda m, trace: rs.plot(trace), "rs.plot expects a Dataset, got a Trace; type rs.plot(rs.trajectory(trace))"),
        (lambda m, trace: rs.transport([trace]), "rs.transport expects a Trace, got several Traces; type rs.transport(traces[0])"),
    ],
)  # fmt: skip
def test_error_contains_the_call_to_type(call: Any, line: str) -> None:
    with pytest.raises(rs.RheoscopeError) as error:
        call(VALUES["model"], VALUES["trace"])
    assert str(error.value) == line


def test_missing_argument_raises_pythons_own_error() -> None:
    with pytest.raises(TypeError, match=r"missing .* argument: 'trace'"):
        rs.transport()


def test_default_values_are_not_checked() -> None:
    assert "type" in rs.head_types(VALUES["model"], trace=None)


def test_public_functions_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(rs.transport)) is rs.transport
    assert inspect.signature(rs.transport).parameters.keys() >= {"trace", "space", "grain"}
    assert torch.is_tensor(VALUES["ids"])
