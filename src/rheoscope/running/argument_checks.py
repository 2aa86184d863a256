"""Argument checks of public functions: an argument of the wrong kind raises an error with the correct call.

A parameter's name decides what it accepts: `view`, `trace`, `model`, `text`, `texts`, `dataset`. Settings annotated as a Trace
or a Dataset are checked too. Errors name the kind of a value and never print it, since values can fill pages.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from torch import Tensor, nn

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.encoder_decoder import LinkedTraces
from rheoscope.running.features import Features
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model
from rheoscope.space.settings import check_setting
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View

KIND_PHRASES = {
    "model": Message("a Model"),
    "view": Message("a View"),
    "trace": Message("a Trace"),
    "traces": Message("several Traces"),
    "linked": Message("a linked pair of Traces"),
    "dataset": Message("a Dataset"),
    "features": Message("a sparse dictionary"),
    "text": Message("a text"),
    "ids": Message("a tensor"),
    "network": Message("a torch module"),
    "path": Message("a path"),
    "nothing": "None",
}
"""Kind of a value → its name in an error."""
TRACE_FROM_TEXT = "model.trace(text)"
SUGGESTED_CODE: dict[str, dict[str, str]] = {
    "trace": {
        "model": TRACE_FROM_TEXT,
        "traces": "traces[0]",
        "linked": "linked.target",
        "network": "rs.load(network, tokenizer=tokenizer).trace(text)",
        "path": "Trace.open(path, model.view)",
        "": TRACE_FROM_TEXT,
    },
    "view": {
        "model": "model.view",
        "trace": "trace.view",
        "traces": "traces.view",
        "linked": "linked.target.view",
        "text": "rs.load(text).view",
        "path": "rs.load(path).view",
        "network": "rs.load(network).view",
        "": "model.view",
    },
    "model": {
        "text": "rs.load(text)",
        "path": "rs.load(path)",
        "network": "rs.load(network, tokenizer=tokenizer)",
        "": "rs.load(…)",
    },
    "text": {"": "'a text'"},
    "dataset": {"": "rs.trajectory(trace)"},
    "features": {"": "rs.Features.load(path)"},
}
"""Expected kind → received kind → code to type instead; the empty key is the default."""
TYPE_KINDS: tuple[tuple[type, str], ...] = (
    (View, "view"), (Trace, "trace"), (Features, "features"),
    (Traces, "traces"), (LinkedTraces, "linked"), (nn.Module, "network"), (str, "text"),
    (Path, "path"), (Tensor, "ids"), (type(None), "nothing"), (Model, "model"),
)  # fmt: skip
KIND_OF_PARAMETER = {
    "view": "view",
    "trace": "trace",
    "model": "model",
    "text": "text",
    "texts": "text",
    "dataset": "dataset",
}
"""Parameter name → the kind that it accepts."""
NON_TEXT_KINDS = {"model", "view", "linked", "dataset", "features", "network", "path", "nothing"}
"""Kinds that are certainly not a text; the model checks everything else."""
VIEW_OF_KIND: dict[str, Callable[[Any], View]] = {
    "view": lambda view: view,
    "trace": lambda trace: trace.view,
    "model": lambda model: model.view,
}
"""Kinds that carry weights, with the View of these weights."""


def with_argument_checks(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under its public name, which checks its arguments before it computes anything."""
    signature = inspect.signature(function)
    expected_kinds = {
        parameter_name: expected_kind
        for parameter_name, parameter in signature.parameters.items()
        if (expected_kind := _expected_kind(parameter)) is not None
    }
    if not expected_kinds:
        return function

    @wraps(function)
    def checked_function(*args: Any, **settings: Any) -> Any:
        try:
            arguments = signature.bind(*args, **settings).arguments
        except TypeError:
            arguments = {}  # the function itself reports what is missing
        for parameter_name, value in arguments.items():
            check_setting(parameter_name, signature.parameters[parameter_name].annotation, value)
            if parameter_name in expected_kinds and value is not signature.parameters[parameter_name].default:
                _check(name, signature, parameter_name, expected_kinds[parameter_name], value)
        return function(*args, **settings)

    # the public name, so that it can be pickled
    checked_function.__module__, checked_function.__qualname__ = "rheoscope", name
    return checked_function


def _expected_kind(parameter: inspect.Parameter) -> str | None:
    """The kind that a parameter accepts, by its name or else by its annotation."""
    if parameter.name in KIND_OF_PARAMETER:
        return KIND_OF_PARAMETER[parameter.name]
    if isinstance(parameter.annotation, str):
        return "dataset" if parameter.annotation in ("xarray.Dataset", "xarray.Dataset | None") else None
    _, inner_type = strip_none(parameter.annotation)
    return {Trace: "trace", View: "view", Model: "model", Features: "features"}.get(inner_type)


def _check(function_name: str, signature: inspect.Signature, parameter_name: str, expected: str, value: Any) -> None:
    received = kind_of(value)
    if received == expected and received in VIEW_OF_KIND:
        VIEW_OF_KIND[received](value).check_current()
    if received == expected or (expected == "text" and received not in NON_TEXT_KINDS):
        return
    suggestion, required = (
        SUGGESTED_CODE[expected].get(received, SUGGESTED_CODE[expected][""]),
        _required_parameters(signature),
    )
    ellipsis = ", …" if len(required) > 1 else ""
    call = (
        f"rs.{function_name}({suggestion}{ellipsis})"
        if parameter_name in required[:1]
        else f"{parameter_name}={suggestion}"
    )
    expected_phrase, received_phrase = KIND_PHRASES[expected], KIND_PHRASES.get(received, received)
    if parameter_name in (expected, *required[:1]):
        problem = Message(
            "rs.{function} expects {expected}, got {received}",
            function=function_name,
            expected=expected_phrase,
            received=received_phrase,
        )
    else:
        problem = Message(
            "rs.{function} expects {expected} as {parameter}, got {received}",
            function=function_name,
            expected=expected_phrase,
            parameter=parameter_name,
            received=received_phrase,
        )
    raise RheoscopeError(problem, Advice(call))


def _required_parameters(signature: inspect.Signature) -> list[str]:
    """The parameters that have no default, in order."""
    return [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]


def strip_none(hint: Any) -> tuple[bool, Any]:
    """Whether a type admits None, and the type without None."""
    if get_origin(hint) not in (Union, UnionType):
        return False, hint
    members = [member for member in get_args(hint) if member is not type(None)]
    return len(members) < len(get_args(hint)), Union[tuple(members)] if len(members) > 1 else members[0]  # noqa: UP007


def kind_of(value: Any) -> str:
    """The kind of a value in one word; its class name if Rheoscope does not know it.

    >>> kind_of("The keys"), kind_of([3, 4]), kind_of(0.5)
    ('text', 'list', 'float')
    """
    if type(value).__module__.partition(".")[0] == "xarray" and type(value).__name__ == "Dataset":
        return "dataset"
    if isinstance(value, list | tuple) and value and all(isinstance(item, Trace) for item in value):
        return "traces"
    return next(
        (kind_name for value_type, kind_name in TYPE_KINDS if isinstance(value, value_type)), type(value).__name__
    )
