"""What a lowering answers when it can run a call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from rheoscope.attention.definition import Definition
from rheoscope.shapes import RheoscopeError

Run = Callable[[Definition, Tensor, Tensor, Tensor], Tensor]
"""How a lowering computes; the definition is given anew, so that one choice serves every layer with parts alike."""


@dataclass(frozen=True, eq=False)
class Offer:
    """A way to run a call and the reason for it; `reluctant` says why another way is better when there is one."""

    why: str
    run: Run
    reluctant: str = ""


Lowerings = Mapping[str, Callable[[Definition, Tensor, Tensor, Tensor], Offer | str]]


def first(
    lowerings: Lowerings, mechanism: Definition, q: Tensor, k: Tensor, v: Tensor
) -> tuple[str, Offer, dict[str, str]]:
    """The first lowering that offers gladly, by name, and why each one before it does not; the last one always offers."""
    passed_over: dict[str, str] = {}
    for name, ask in lowerings.items():
        answer = ask(mechanism, q, k, v)
        if isinstance(answer, Offer) and not answer.reluctant:
            return name, answer, passed_over
        passed_over[name] = answer.reluctant if isinstance(answer, Offer) else answer
    raise RheoscopeError(f"no lowering runs this: {passed_over}; type lowering='reference'")
