"""A point of the stream as a sum of components: the embedding, every head, every MLP and the biases.

    x_step = embed + position + sum_l ( sum_h L{l}.H{h} + L{l}.bias + L{l}.mlp )

`L3.H1` is sum_j alpha_ij x̂_j F of head 1 of layer 3. `L3.bias` holds all constants of that attention (of values, of the
output), which belong to no head. Post-norm blocks also have a displacement by each norm (`L3.norm_attention`, `L3.norm_mlp`).
Decoders with cross-attention also have `L3.cross.H1` and `L3.cross.bias`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

PartsByName = dict[str, Float[Tensor, "n d"]]
HEAD_NAME = re.compile(r"L(\d+)\.H(\d+)")
"""The name of a head of self-attention."""
NORM_NAMES = {"attn_sum": "norm_attention", "cross_sum": "norm_cross", "mlp_sum": "norm_mlp"}
"""The norm that turns each sum into the next point."""


@dataclass(frozen=True, eq=False)
class Components:
    """The points of some tokens as sums: `parts` (c, n, d) add up to them, `names` (c) are the components."""

    names: tuple[str, ...]
    parts: Float[Tensor, "c n d"]


@torch.no_grad()
def components(trace: Trace, step: str | Step | None = None, tokens: Sequence[int] | None = None) -> Components:
    """The points of `tokens` (default: all) at a step (default: the last) as sums of everything written before.

    **Question** Which heads, MLPs and biases wrote this point?

    **Shapes** parts (c, n, d) in float32 or better. For long texts, select the tokens that are needed.

    **Laws** The parts of every point add up to it. No gauge changes any part.

    **See also** `trace.attention_parts(layer)` for one layer; `trace.displacements` counts the bias of values to the heads.

    >>> import rheoscope as rs
    >>> trace = rs.load().trace("The keys to the cabinet")
    >>> result = components(trace, "L1.resid_mid", [-1])
    >>> result.names[0], result.names[-1], torch.allclose(result.parts.sum(0), trace.points_at("L1.resid_mid")[-1:], atol=1e-4)
    ('embed', 'L1.H3', True)
    """
    last_step = len(trace.steps) - 1 if step is None else trace.index(step)
    positions = resolve_positions(tokens, len(trace))
    parts = embedding_parts(trace, positions)
    for layer in range(trace.view.layers):
        for step_index in range(trace.input_steps[layer] + 1, min(last_step_of_layer(trace, layer), last_step) + 1):
            parts |= written_parts(trace, layer, step_index, positions)
    return Components(tuple(parts), torch.stack(list(parts.values())))


def resolve_positions(tokens: Sequence[int] | None, n_tokens: int) -> list[int]:
    """Token positions, counted from 0; negative ones count from the end."""
    invalid = [token for token in tokens or [] if not -n_tokens <= token < n_tokens]
    if invalid:
        raise RheoscopeError(
            Message(
                "there is no token {received}; this text has tokens 0 to {last}", received=invalid[0], last=n_tokens - 1
            )
        )
    return list(range(n_tokens)) if tokens is None else [token % n_tokens for token in tokens]


def last_step_of_layer(trace: Trace | Traces, layer: int) -> int:
    """The index of the last step of a layer."""
    return trace.input_steps[layer + 1] if layer + 1 < trace.view.layers else len(trace.steps) - 1


def mlp_step(trace: Trace | Traces, layer: int) -> int:
    """The index of the step that the MLP of a layer wrote: the last one, or the one before its norm."""
    last_step = last_step_of_layer(trace, layer)
    return last_step - 1 if trace.steps[last_step - 1].kind == "mlp_sum" else last_step


def embedding_parts(trace: Trace, positions: list[int]) -> PartsByName:
    """The token embeddings, and the rest of the first point: positions (in BERT also segments and a norm).

    Patches and frames have no token embeddings, so their first points are one part.
    """
    start = at_least_float32(trace.points[0, positions])
    if not trace.view.reads_tokens:
        return {"embed": start}
    token_part = at_least_float32(trace.view.token_embeddings(trace.ids[positions]))
    position_part = start - token_part
    if float(position_part.norm()) <= 10 * torch.finfo(trace.view.dtype).eps * float(start.norm()):
        return {"embed": start}
    return {"embed": token_part, "position": position_part}


def written_parts(trace: Trace, layer: int, step_index: int, positions: list[int]) -> PartsByName:
    """The components that a layer wrote between the step before `step_index` and `step_index`, by name."""
    prefix, step, previous_step = f"L{layer}", trace.steps[step_index], trace.steps[step_index - 1]
    if step_index == trace.mid_steps[layer]:
        return _named_head_parts(prefix, *trace.attention_parts(layer, positions))
    if step.is_cross and previous_step.kind != "cross_sum":
        return _named_head_parts(f"{prefix}.cross", *trace.cross_attention_parts(layer, positions))
    displacement = at_least_float32(trace.points[step_index, positions]) - at_least_float32(
        trace.points[step_index - 1, positions]
    )
    return {f"{prefix}.{NORM_NAMES.get(previous_step.kind, 'mlp')}": displacement}


def _named_head_parts(prefix: str, displacements: Float[Tensor, "h n d"], bias: Float[Tensor, "n d"]) -> PartsByName:
    parts = {f"{prefix}.H{head}": at_least_float32(displacement) for head, displacement in enumerate(displacements)}
    return parts | ({f"{prefix}.bias": at_least_float32(bias)} if bool(bias.any()) else {})


def heads_by_contribution(components: np.ndarray, contributions: np.ndarray) -> list[tuple[int, int]]:
    """The heads of self-attention among the components of a logit, the largest contribution first.

    >>> heads_by_contribution(np.array(["embed", "L0.H1", "L0.cross.H1", "L2.H0"]), np.array([3.0, 0.5, 2.0, -0.9]))
    [(2, 0), (0, 1)]
    """
    order = np.argsort(-np.abs(contributions), kind="stable")
    matches = [HEAD_NAME.fullmatch(str(components[index])) for index in order]
    return [(int(match[1]), int(match[2])) for match in matches if match]
