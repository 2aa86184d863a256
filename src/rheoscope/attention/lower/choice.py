"""Which implementation a mechanism takes on these inputs, and why. Nothing falls back in silence.

A lowering is a file with `offer(mechanism, q, k, v)`: it returns an `Offer` to run, or a sentence that says why it
cannot. The first offer in the order of `LOWERINGS` is taken; `reference` always offers. A kernel for another machine is
one more file and one more line here.
"""

from dataclasses import dataclass

from torch import Tensor

from rheoscope.attention.definition import Definition
from rheoscope.attention.lower import blocks, cudnn, flex, linear_prefix, reference_lowering, sdpa, shaped
from rheoscope.attention.lower.kernels import triton_lowerings as kernels
from rheoscope.attention.lower.lowering import AttentionFunction, LoweredCall, Lowerings, first_accepted
from rheoscope.shapes import RheoscopeError

LOWERINGS: Lowerings = {
    "kernels": kernels.try_lower,
    "prefix": linear_prefix.try_lower,
    "shaped": shaped.try_lower,
    "cudnn": cudnn.try_lower,
    "flex": flex.try_lower,
    "sdpa": sdpa.try_lower,
    "blocks": blocks.try_lower,
    "reference": reference_lowering.try_lower,
}


@dataclass(frozen=True, eq=False)
class Choice:
    """The lowering taken (`name`), the reason (`why`), how it runs (`run`), and why each earlier one was not taken."""

    name: str
    reason: str
    run: AttentionFunction
    rejections: dict[str, str]

    def __str__(self) -> str:
        return "\n".join(
            [f"{self.name}: {self.reason}", *(f"  not {name}: {reason}" for name, reason in self.rejections.items())]
        )


def choose_lowering(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor, lowering: str | None = None) -> Choice:
    """The first lowering that offers to run these inputs; with `only`, that one or a refusal."""
    if lowering is None:
        name, lowered, rejections = first_accepted(LOWERINGS, mechanism, q, k, v)
        return Choice(name, lowered.reason, lowered.run, rejections)
    if lowering not in LOWERINGS:
        raise RheoscopeError(f"unknown lowering {lowering!r}; type one of {', '.join(LOWERINGS)}")
    outcome = LOWERINGS[lowering](mechanism, q, k, v)
    if isinstance(outcome, LoweredCall):
        return Choice(lowering, outcome.reason, outcome.run, {})
    raise RheoscopeError(f"the lowering {lowering!r} cannot run this: {outcome}; leave lowering= out to take another")
