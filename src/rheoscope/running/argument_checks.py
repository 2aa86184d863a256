"""What a public function was given, looked at once: a model where a view is wanted is told in one line, with what to type.

The names of parameters say what they take: `view`, `trace`, `model`, `text`, `texts`, `dataset`, and settings that are a Trace or a
Dataset besides. Values are called by their kind and never printed, since the smallest of them fills pages.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from torch import Tensor, nn

from rheoscope.running.encoder_decoder import Linked
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View

CALLED = {
    "model": "a Model",
    "view": "a View",
    "trace": "a Trace",
    "traces": "several Traces",
    "linked": "a linked pair of Traces",
    "dataset": "a Dataset",
    "text": "a text",
    "ids": "a tensor",
    "network": "a torch module",
    "path": "a path",
    "nothing": "None",
}
"""Kind of a value → what a sentence calls it."""
FROM_TEXT = "model.trace(text)"
TYPED: dict[str, dict[str, str]] = {
    "trace": {
        "model": FROM_TEXT,
        "traces": "traces[0]",
        "linked": "linked.target",
        "network": "rs.load(network, tokenizer=tokenizer).trace(text)",
        "path": "Trace.open(path, model.view)",
        "": FROM_TEXT,
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
    "text": {"trace": "trace.text", "": "'a text'"},
    "dataset": {"": "rs.trajectory(trace)"},
}
"""What is wanted → what came → what to type instead; the last row for everything else."""
KINDS: tuple[tuple[type, str], ...] = (
    (View, "view"), (Trace, "trace"), (Traces, "traces"), (Linked, "linked"), (nn.Module, "network"), (str, "text"),
    (Path, "path"), (Tensor, "ids"), (type(None), "nothing"), (Model, "model"),
)  # fmt: skip
NAMED = {"view": "view", "trace": "trace", "model": "model", "text": "text", "texts": "text", "dataset": "dataset"}
"""Name of a parameter → what it takes."""
NO_TEXT = {"model", "view", "trace", "traces", "linked", "dataset", "network", "path", "nothing"}
"""What is surely no text; the model itself looks at everything else."""


def looking_first(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function under its public name, which refuses a first argument of the wrong kind before anything is computed."""
    signature = inspect.signature(function)
    wanted = {at: kind for at, one in signature.parameters.items() if (kind := _wanted(one)) is not None}
    if not wanted:
        return function

    @wraps(function)
    def look(*args: Any, **settings: Any) -> Any:
        try:
            given = signature.bind(*args, **settings).arguments
        except TypeError:
            given = {}  # the function itself says what is missing
        for at, value in given.items():
            if at in wanted and value is not signature.parameters[at].default:
                _check(name, signature, at, wanted[at], value)
        return function(*args, **settings)

    look.__module__, look.__qualname__ = "rheoscope", name  # where it is found again when it is unpickled
    return look


def _wanted(parameter: inspect.Parameter) -> str | None:
    """What a parameter takes, by its name or else by its type."""
    if parameter.name in NAMED:
        return NAMED[parameter.name]
    if isinstance(parameter.annotation, str):
        return "dataset" if parameter.annotation in ("xarray.Dataset", "xarray.Dataset | None") else None
    _, plain = without_none(parameter.annotation)
    return {Trace: "trace", View: "view", Model: "model"}.get(plain)


def _check(name: str, signature: inspect.Signature, parameter: str, wanted: str, value: Any) -> None:
    came = kind(value)
    if came == wanted or (wanted == "text" and came not in NO_TEXT):
        return
    instead, needed = TYPED[wanted].get(came, TYPED[wanted][""]), _needed(signature)
    more = ", …" if len(needed) > 1 else ""
    call = f"rs.{name}({instead}{more})" if parameter in needed[:1] else f"{parameter}={instead}"
    which = "" if parameter in (wanted, *needed[:1]) else f" as {parameter}"
    raise RheoscopeError(f"rs.{name} takes {CALLED[wanted]}{which}, got {CALLED.get(came, came)}; type {call}")


def _needed(signature: inspect.Signature) -> list[str]:
    """The parameters that have no default, in order."""
    return [
        at for at, one in signature.parameters.items() if one.default is one.empty and one.kind is not one.VAR_KEYWORD
    ]


def without_none(hint: Any) -> tuple[bool, Any]:
    """Whether a type may be None, and what it is else."""
    if get_origin(hint) not in (Union, UnionType):
        return False, hint
    parts = [part for part in get_args(hint) if part is not type(None)]
    return len(parts) < len(get_args(hint)), Union[tuple(parts)] if len(parts) > 1 else parts[0]  # noqa: UP007


def kind(value: Any) -> str:
    """What a value is, in a word; its class where it is nothing that Rheoscope knows.

    >>> kind("The keys"), kind([3, 4]), kind(0.5)
    ('text', 'list', 'float')
    """
    if type(value).__module__.partition(".")[0] == "xarray" and type(value).__name__ == "Dataset":
        return "dataset"
    if isinstance(value, list | tuple) and value and all(isinstance(one, Trace) for one in value):
        return "traces"
    return next((word for one, word in KINDS if isinstance(value, one)), type(value).__name__)
