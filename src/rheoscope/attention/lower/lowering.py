"""What a lowering answers when it can run a call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from rheoscope.attention.definition import Definition
from rheoscope.shapes import RheoscopeError

AttentionFunction = Callable[[Definition, Tensor, Tensor, Tensor], Tensor]
"""How a lowering computes; the definition is given anew, so that one choice serves every layer with parts alike."""


@dataclass(frozen=True, eq=False)
class LoweredCall:
    """A way to run a call and the reason for it; `reluctant` says why another way is better when there is one."""

    reason: str
    run: AttentionFunction
    drawback: str = ""


Lowerings = Mapping[str, Callable[[Definition, Tensor, Tensor, Tensor], LoweredCall | str]]


def first_accepted(
    lowerings: Lowerings, mechanism: Definition, q: Tensor, k: Tensor, v: Tensor
) -> tuple[str, LoweredCall, dict[str, str]]:
    """The first lowering that offers gladly, by name, and why each one before it does not; the last one always offers."""
    rejections: dict[str, str] = {}
    for name, try_lowering in lowerings.items():
        outcome = try_lowering(mechanism, q, k, v)
        if isinstance(outcome, LoweredCall) and not outcome.drawback:
            return name, outcome, rejections
        rejections[name] = outcome.drawback if isinstance(outcome, LoweredCall) else outcome
    raise RheoscopeError(f"no lowering runs this: {rejections}; type lowering='reference'")
