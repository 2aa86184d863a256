"""`LoweredCall`, the answer of a lowering that can run a call, and the search for the first such lowering."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rheoscope.attention.definition import Definition
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message, join
from rheoscope.shapes import RheoscopeError

NO_MESSAGE = "torch.compile traces this call, so no reason is given"
AttentionFunction = Callable[[Definition, Tensor, Tensor, Tensor], Tensor]
"""The computation of a lowering. The definition is an argument, so layers of equal structure share one choice."""


@dataclass(frozen=True, eq=False)
class LoweredCall:
    """A function that runs a call, the reason for it, and why another lowering is better, if one is."""

    reason: str
    run: AttentionFunction
    drawback: str = ""


def unless_compiling(make_message: Callable[[], Message]) -> str:
    """A message, or a fixed text while torch.compile traces the call: Dynamo cannot trace a Message."""
    return NO_MESSAGE if torch.compiler.is_compiling() else make_message()


Lowerings = Mapping[str, Callable[[Definition, Tensor, Tensor, Tensor], LoweredCall | str]]


def first_accepted(
    lowerings: Lowerings, mechanism: Definition, q: Tensor, k: Tensor, v: Tensor
) -> tuple[str, LoweredCall, dict[str, str]]:
    """The first lowering without a drawback and its name, and the reason against each one before it.

    The last lowering of the table must accept every call.
    """
    rejections: dict[str, str] = {}
    for name, try_lowering in lowerings.items():
        outcome = try_lowering(mechanism, q, k, v)
        if isinstance(outcome, LoweredCall) and not outcome.drawback:
            return name, outcome, rejections
        rejections[name] = outcome.drawback if isinstance(outcome, LoweredCall) else outcome
    reasons = [Message("{name}: {reason}", name=name, reason=reason) for name, reason in rejections.items()]
    raise RheoscopeError(
        Message("no lowering can run this call ({reasons})", reasons=join("; ", tuple(reasons))),
        use(lowering="reference"),
    )
