"""What prevents a layer from being a gradient flow: mask, norm, positions, the MLP, and the landscape of the next layer."""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.definition import repeat_kv_heads
from rheoscope.attention.mask import Mask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.position import TokenEncoding
from rheoscope.flow.energy.head_updates import Cloud, HeadUpdates, padding_mask
from rheoscope.space.components import last_step_of_layer
from rheoscope.space.float32_products import mixed_precision_matmul
from rheoscope.space.head import Heads
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

LEDGER_PARTS = ("mask", "norm", "position", "mlp")


def next_layer_displacement(trace: Trace | Traces, layer: int) -> Cloud:
    """The displacement of this layer's cloud by the attention of the next layer; NaN at the last layer."""
    if layer + 1 == trace.view.layers:
        return torch.full_like(at_least_float32(points_at(trace, 0)), float("nan"))
    next_heads = trace.view.layer_heads[layer + 1]
    mechanism, projections = (
        next_heads.mechanism.with_mask(padding_mask(trace, layer + 1)),
        next_heads.qkv(trace.view.to_model_precision(trace.layer_input(layer))),
    )
    return attention_displacement(next_heads, mechanism, trace.layer_input(layer), *projections).reshape(
        points_at(trace, 0).shape
    )


def ablated_displacements(trace: Trace | Traces, layer: int, updates: HeadUpdates, displacement: Cloud) -> list[Cloud]:
    """The displacement by attention after removing the mask, the norm or the positions, or adding the MLP."""
    heads, mechanism = updates.landscape.heads, updates.landscape.heads.mechanism
    padding = trace.padding if isinstance(trace, Traces) else None
    x, projections = (
        at_least_float32(trace.layer_input(layer)),
        [trace.view.to_model_precision(part) for part in updates.projections()],
    )
    return [
        displacement
        if mechanism.mask.allows_all
        else displacement_without_mask(updates, x, projections, padding).reshape(displacement.shape),
        _displacement_after_norm(updates, trace, layer, x, displacement),
        displacement
        if mechanism.position.is_trivial
        else attention_displacement(
            heads, mechanism.without_position.with_mask(padding_mask(trace, layer)), x, *projections
        ).reshape(displacement.shape),
        at_least_float32(points_at(trace, last_step_of_layer(trace, layer))) - x,
    ]


def displacement_without_mask(
    updates: HeadUpdates, x: Cloud, projections: Sequence[Tensor], padding: Mask | None
) -> Float[Tensor, "b n d"]:
    """The displacement by attention to all tokens. Encoded queries and keys are those of the energy."""
    heads, (q, k, v) = updates.landscape.heads, projections
    mechanism = heads.mechanism.without_mask
    if isinstance(mechanism.position, TokenEncoding):
        mechanism, q, k = mechanism.without_position, updates.positioned_queries, updates.landscape.keys
        v = repeat_kv_heads(v.to(q.dtype), heads.n_heads)
    return attention_displacement(heads, mechanism.with_mask(padding), x, q, k, v)


def _displacement_after_norm(
    updates: HeadUpdates, trace: Trace | Traces, layer: int, x: Cloud, displacement: Cloud
) -> Cloud:
    """The displacement after the norm: of x̂ in pre-norm blocks, of the sum in post-norm blocks."""
    middle = trace.mid_steps[layer]
    if trace.steps[middle].is_sum:
        return at_least_float32(points_at(trace, middle + 1)) - x
    return updates.landscape.heads.norm.normalise(x + displacement) - updates.x_hat


def attention_displacement(
    heads: Heads, mechanism: Mechanism, x: Cloud, q: Tensor, k: Tensor, v: Tensor
) -> Float[Tensor, "b n d"]:
    """The displacement by the attention of a layer with the weights of `mechanism`."""
    out = mechanism.attend(q, k, v)
    out = heads.apply_gate(out, x, all_outputs=out).transpose(1, 2).flatten(2)
    total = mixed_precision_matmul(out, heads.W_O.flatten(0, 1))
    total = total if heads.b_O is None else total + heads.b_O
    if heads.output_norm is None:
        return total
    return total * heads.output_norm_scale(total) + (0 if heads.output_norm.bias is None else heads.output_norm.bias)


def cosine_distances(a: Cloud, candidates: Iterable[Cloud]) -> Float[Tensor, "*b others"]:
    """1 − cos between an array and each candidate, as flat vectors; 0 if one of them is 0."""
    a = a.flatten(-2)
    pairs = [(torch.linalg.vecdot(a, b), b.norm(dim=-1)) for b in (candidate.flatten(-2) for candidate in candidates)]
    inner, norms = (torch.stack(part, -1) for part in zip(*pairs, strict=True))
    norms = a.norm(dim=-1)[..., None] * norms
    return torch.where(norms == 0, 0, 1 - inner / torch.where(norms == 0, 1, norms))


def recorded_displacement(trace: Trace | Traces, layer: int) -> Cloud:
    return at_least_float32(points_at(trace, trace.mid_steps[layer])) - at_least_float32(
        points_at(trace, trace.input_steps[layer])
    )


def points_at(trace: Trace | Traces, point: int) -> Cloud:
    return trace.points[..., point, :, :]
