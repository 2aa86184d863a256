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
from rheoscope.attention.lower.lowering import Lowerings, Offer, Run, first
from rheoscope.shapes import RheoscopeError

LOWERINGS: Lowerings = {
    "kernels": kernels.offer,
    "prefix": linear_prefix.offer,
    "shaped": shaped.offer,
    "cudnn": cudnn.offer,
    "flex": flex.offer,
    "sdpa": sdpa.offer,
    "blocks": blocks.offer,
    "reference": reference_lowering.offer,
}


@dataclass(frozen=True, eq=False)
class Choice:
    """The lowering taken (`name`), the reason (`why`), how it runs (`run`), and why each earlier one was not taken."""

    name: str
    why: str
    run: Run
    passed_over: dict[str, str]

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.why}", *(f"  not {n}: {why}" for n, why in self.passed_over.items())])


def choose(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor, only: str | None = None) -> Choice:
    """The first lowering that offers to run these inputs; with `only`, that one or a refusal."""
    if only is None:
        name, taken, passed_over = first(LOWERINGS, mechanism, q, k, v)
        return Choice(name, taken.why, taken.run, passed_over)
    if only not in LOWERINGS:
        raise RheoscopeError(f"unknown lowering {only!r}; type one of {', '.join(LOWERINGS)}")
    answer = LOWERINGS[only](mechanism, q, k, v)
    if isinstance(answer, Offer):
        return Choice(only, answer.why, answer.run, {})
    raise RheoscopeError(f"the lowering {only!r} cannot run this: {answer}; leave lowering= out to take another")
