"""A point of the stream as a sum: the embedding, every head, every MLP and the biases, up to any step.

    x_step = embed + position + sum_l ( sum_h L{l}.H{h} + L{l}.bias + L{l}.mlp )

`L3.H1` is sum_j alpha_ij x̂_j F of head 1 of layer 3; `L3.bias` are all constants of that attention (of values, of the
output), which no head owns. Post-norm blocks have a displacement by each norm besides (`L3.norm_attention`,
`L3.norm_mlp`), decoders that read a source `L3.cross.H1`, `L3.cross.bias`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.shapes import RheoscopeError
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

Named = dict[str, Float[Tensor, "n d"]]
NORM_AFTER = {"attn_sum": "norm_attention", "cross_sum": "norm_cross", "mlp_sum": "norm_mlp"}
"""Which norm makes the next point of a sum."""


@dataclass(frozen=True, eq=False)
class Components:
    """A point of some tokens, taken apart: `parts` (c, n, d) add up to it, `names` (c) say what they are."""

    names: tuple[str, ...]
    parts: Float[Tensor, "c n d"]


@torch.no_grad()
def components(trace: Trace, step: str | Step | None = None, tokens: Sequence[int] | None = None) -> Components:
    """The points of `tokens` (all, unless said) at a step (the last, unless said) as sums of all that was written before.

    **Answers** "who wrote what stands here?"

    **Shapes** parts (c, n, d) in float32 or better: for long texts, ask for the tokens that are needed.

    **Laws** the parts of every point add up to it; no gauge moves any of them.

    **Siblings** `trace.parts(layer)` is one layer's attention, `trace.displacements` has the bias of values inside heads.

    >>> import rheoscope as rs
    >>> trace = rs.load().trace("The keys to the cabinet")
    >>> found = components(trace, "L1.resid_mid", [-1])
    >>> found.names[0], found.names[-1], torch.allclose(found.parts.sum(0), trace.at("L1.resid_mid")[-1:], atol=1e-4)
    ('embed', 'L1.H3', True)
    """
    last = len(trace.steps) - 1 if step is None else trace.index(step)
    rows = checked(tokens, len(trace))
    found = started(trace, rows)
    for layer in range(trace.view.layers):
        for at in range(trace.where[layer] + 1, min(end_of(trace, layer), last) + 1):
            found |= written_between(trace, layer, at, rows)
    return Components(tuple(found), torch.stack(list(found.values())))


def checked(tokens: Sequence[int] | None, n: int) -> list[int]:
    """Which tokens, counted from 0; a negative one counts from the end."""
    wrong = [token for token in tokens or [] if not -n <= token < n]
    if wrong:
        raise RheoscopeError(f"there is no token {wrong[0]}; this text has tokens 0 to {n - 1}")
    return list(range(n)) if tokens is None else [token % n for token in tokens]


def end_of(trace: Trace | Traces, layer: int) -> int:
    """The last step of a layer."""
    return trace.where[layer + 1] if layer + 1 < trace.view.layers else len(trace.steps) - 1


def mlp_at(trace: Trace | Traces, layer: int) -> int:
    """The step that the MLP of a layer wrote: the last one, or the one before its norm."""
    end = end_of(trace, layer)
    return end - 1 if trace.steps[end - 1].kind == "mlp_sum" else end


def started(trace: Trace, rows: list[int]) -> Named:
    """What each word brings, and what else stands at the start: positions (in BERT, segments and a norm too)."""
    start = exact(trace.points[0, rows])
    words = exact(trace.view.embedded(trace.ids[rows]))
    rest = start - words
    if float(rest.norm()) <= 10 * torch.finfo(trace.view.dtype).eps * float(start.norm()):
        return {"embed": start}
    return {"embed": words, "position": rest}


def written_between(trace: Trace, layer: int, at: int, rows: list[int]) -> Named:
    """What a layer wrote from the step before `at` to `at`, by name."""
    name, step, before = f"L{layer}", trace.steps[at], trace.steps[at - 1]
    if at == trace.middle[layer]:
        return _heads(name, *trace.parts(layer, rows))
    if step.is_cross and before.kind != "cross_sum":
        return _heads(f"{name}.cross", *trace.cross_parts(layer, rows))
    moved = exact(trace.points[at, rows]) - exact(trace.points[at - 1, rows])
    return {f"{name}.{NORM_AFTER.get(before.kind, 'mlp')}": moved}


def _heads(name: str, moved: Float[Tensor, "h n d"], bias: Float[Tensor, "n d"]) -> Named:
    found = {f"{name}.H{head}": exact(part) for head, part in enumerate(moved)}
    return found | ({f"{name}.bias": exact(bias)} if bool(bias.any()) else {})
