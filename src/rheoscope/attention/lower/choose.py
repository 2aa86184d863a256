"""Which implementation a mechanism takes on these inputs, and why. Nothing falls back in silence.

A lowering is a file with `offer(mechanism, q, k, v)`: it returns an `Offer` to run, or a sentence that says why it
cannot. The first offer in the order of `LOWERINGS` is taken; `reference` always offers. A kernel for another machine is
one more file and one more line here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from rheoscope.attention.lower import blocks, plain, prefix, sdpa, shaped
from rheoscope.attention.lower.offer import Offer
from rheoscope.attention.mechanism import Mechanism
from rheoscope.shapes import RheoscopeError

LOWERINGS: dict[str, Callable[[Mechanism, Tensor, Tensor, Tensor], Offer | str]] = {
    "prefix": prefix.offer,
    "shaped": shaped.offer,
    "sdpa": sdpa.offer,
    "blocks": blocks.offer,
    "reference": plain.offer,
}


@dataclass(frozen=True, eq=False)
class Choice:
    """The lowering taken (`name`), the reason (`why`), the call (`run`), and why each earlier one was not taken."""

    name: str
    why: str
    run: Callable[[Tensor, Tensor, Tensor], Tensor]
    passed_over: dict[str, str]

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.why}", *(f"  not {n}: {why}" for n, why in self.passed_over.items())])


def choose(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor, only: str | None = None) -> Choice:
    """The first lowering that offers to run these inputs; with `only`, that one or a refusal."""
    if only is not None and only not in LOWERINGS:
        raise RheoscopeError(f"unknown lowering {only!r}; type one of {', '.join(LOWERINGS)}")
    passed_over: dict[str, str] = {}
    for name in LOWERINGS if only is None else [only]:
        answer = LOWERINGS[name](mechanism, q, k, v)
        if isinstance(answer, Offer):
            if only is None and answer.reluctant:
                passed_over[name] = answer.reluctant
                continue
            return Choice(name, answer.why, answer.run, passed_over)
        passed_over[name] = answer
    raise RheoscopeError(
        f"the lowering {only!r} cannot run this: {passed_over[str(only)]}; leave lowering= out to take another"
    )
