"""The choice of a lowering for a call, with the reason for it and the reason against every other one.

A lowering is a module with `try_lower(mechanism, q, k, v)`, which returns a `LoweredCall` or the reason why it cannot
run the call. The first one in the order of `LOWERINGS` that accepts is chosen; `reference` accepts every call. A kernel
for new hardware needs one more module and one more line here.
"""

from dataclasses import dataclass

from torch import Tensor

from rheoscope.attention.definition import Definition
from rheoscope.attention.lower import (
    blocks,
    cudnn,
    flex,
    linear_prefix,
    reference_lowering,
    sdpa,
    shaped,
    strictly_causal,
)
from rheoscope.attention.lower.kernels import triton_lowerings as kernels
from rheoscope.attention.lower.lowering import AttentionFunction, LoweredCall, Lowerings, first_accepted
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message, join
from rheoscope.shapes import RheoscopeError

LOWERINGS: Lowerings = {
    "kernels": kernels.try_lower,
    "prefix": linear_prefix.try_lower,
    "shaped": shaped.try_lower,
    "strictly_causal": strictly_causal.try_lower,
    "cudnn": cudnn.try_lower,
    "flex": flex.try_lower,
    "sdpa": sdpa.try_lower,
    "blocks": blocks.try_lower,
    "reference": reference_lowering.try_lower,
}


@dataclass(frozen=True, eq=False)
class Choice:
    """The name of the chosen lowering, the reason for it, its function, and the reason against each earlier one."""

    name: str
    reason: str
    run: AttentionFunction
    rejections: dict[str, str]

    def __str__(self) -> str:
        choice = Message("{name}: {reason}", name=self.name, reason=self.reason)
        rejections = (
            Message("  not {name}: {reason}", name=name, reason=reason) for name, reason in self.rejections.items()
        )
        return join("\n", [choice, *rejections])


def choose_lowering(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor, lowering: str | None = None) -> Choice:
    """The first lowering that accepts these inputs, or the one named `lowering`, which must accept them."""
    if lowering is None:
        name, lowered, rejections = first_accepted(LOWERINGS, mechanism, q, k, v)
        return Choice(name, lowered.reason, lowered.run, rejections)
    if lowering not in LOWERINGS:
        raise RheoscopeError(
            Message("lowering must be one of {names}, got {lowering!r}", names=", ".join(LOWERINGS), lowering=lowering),
            use(lowering="reference"),
        )
    outcome = LOWERINGS[lowering](mechanism, q, k, v)
    if isinstance(outcome, LoweredCall):
        return Choice(lowering, outcome.reason, outcome.run, {})
    raise RheoscopeError(
        Message("the lowering {lowering!r} cannot run this call: {reason}", lowering=lowering, reason=outcome),
        Advice("lowering=None"),
    )
