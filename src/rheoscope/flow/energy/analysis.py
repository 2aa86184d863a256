"""Is attention a gradient flow? The energy of every head, how far it climbs it, and what stands between it and a gradient."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.block_size import block_numel
from rheoscope.attention.mask import NoMask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.position import NoPosition
from rheoscope.flow.energy.head_updates import HeadUpdates, head_updates, padding_mask
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.components import last_step_of_layer
from rheoscope.space.float32_products import mixed_precision_matmul
from rheoscope.space.head import Heads
from rheoscope.space.masked_means import ValidTokens, masked_mean, valid_counts, zero_invalid_rows
from rheoscope.space.operator import Factored
from rheoscope.space.safe_arithmetic import at_least_float32, safe_divide
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View
from rheoscope.statistics.nulls import normal_one_sided_p, q_values_per_row

if TYPE_CHECKING:
    import xarray

FDR_LEVEL = 0.05
LEDGER_PARTS = ("mask", "norm", "position", "mlp")
Cloud = Float[Tensor, "*b n d"]
PerHead = Float[Tensor, "*b h"]


@torch.no_grad()
def energy(
    trace: Trace, keep_massive: bool = False, progress: Callable[[int, int], None] | None = None
) -> "xarray.Dataset":
    """Does each head move tokens up its own energy, and what keeps the layers from being a gradient flow?

    **Answers** "is what this head adds the gradient of something, or could it be any direction?"

    **Formula** Λ(X̂) = (1/N) Σ_i log((1/n_i) Σ_{j permitted} e^{s_ij}); its query-side gradient is Σ_j α_ij x̂_j Mᵀ, softmax
    attention with Mᵀ for F. Only queries move; Δ_h is what the head takes from the tokens, without the bias of values.
    Every field's formula is in its `attrs["definition"]`.

    **Gives** (layer, head): `energy`, `energy_after`, `first_order`, `remainder`, `cosine` with its null, `alignment`,
    `q_value`, `gradient_like`, `symmetry`; (layer): `landscape`, `landscape_update`; (layer, difference): `ledger`. Massive
    tokens stay keys, and are left out of every mean; `attrs` has how many heads were tested and found.

    **Laws** the gradient is autograd's; Λ after a small part t of Δ_h is Λ + t · first_order; F = cMᵀ gives cosine 1;
    unchanged by every move that leaves the logits unchanged and by a turn of the axes of E.

    **Source** arXiv:2312.10794 (attention as a gradient flow), arXiv:2008.02217 (the log-sum-exp energy).

    **Relation** `operators` has alignment and symmetry without a text; `trajectory` says how far each head moves tokens.

    >>> import rheoscope as rs
    >>> found = rs.energy(rs.load().trace("The keys to the cabinet are on the table"))
    >>> found.cosine.dims, bool((abs(found.cosine) <= 1 + 1e-6).all())
    (('layer', 'head'), True)
    """
    valid = trace.valid_mask(keep_massive, min_tokens=2)
    values = kernel(trace, None if bool(valid.all()) else valid, progress) | weight_statistics(trace.view)
    return _to_dataset(trace, values, keep_massive)


@torch.no_grad()
def batch(
    traces: Traces, keep_massive: bool = False, progress: Callable[[int, int], None] | None = None
) -> dict[str, Tensor]:
    """The heads of every layer on many texts at once: every field of `energy`."""
    values = kernel(traces, traces.valid_tokens(keep_massive, min_tokens=2), progress)
    values |= {name: x.expand(len(traces), *x.shape) for name, x in weight_statistics(traces.view).items()}
    q_values = joint_q_values(values["z"], values["alignment_z"])
    return values | {"q_value": q_values, "gradient_like": q_values <= FDR_LEVEL}


def kernel(
    trace: Trace | Traces, valid: ValidTokens, progress: Callable[[int, int], None] | None = None
) -> dict[str, Tensor]:
    """All that depends on the text, of one or of several; tokens that are not `there` stay keys, and are left out of every mean."""
    rows = []
    for layer in range(trace.view.layers):
        rows.append(layer_statistics(trace, layer, valid))
        if progress is not None:
            progress(layer + 1, trace.view.layers)
    layer_axis = trace.points.ndim - 3
    return {name: torch.stack([row[name] for row in rows], layer_axis) for name in rows[0]}


def weight_statistics(view: View) -> dict[str, Float[Tensor, "layer *h"]]:
    """All that the weights alone tell; heads of as many layers together as a device holds: a GPU waits for each thing that it is asked."""
    rows: list[dict[str, Tensor]] = []
    landscape_changes: list[Tensor] = []
    summed_M: Tensor | None = None
    numbers_per_layer = sum(
        x.numel()
        for x in (view.layer_heads[0].W_Q, view.layer_heads[0].W_K, view.layer_heads[0].W_V, view.layer_heads[0].W_O)
    )
    layers_per_chunk = max(1, block_numel(view.layer_heads[0].W_Q.device) // numbers_per_layer)
    for chunk in chunks_of_same_shape(view.layer_heads, layers_per_chunk):
        Ms, Fs = [heads.M().at_least_float32() for heads in chunk], [heads.F().at_least_float32() for heads in chunk]
        values = alignments(concatenate_heads(Ms), concatenate_heads(Fs), sum(len(heads.W_K) for heads in chunk))
        rows.append({name: x.unflatten(0, (len(chunk), -1)) for name, x in values.items()})
        for heads, M in zip(chunk, Ms, strict=True):
            previous_M, summed_M = summed_M, summed_relevance(M, len(heads.W_K))
            if previous_M is not None:
                landscape_changes.append(cosine_distances(previous_M, [summed_M])[0])
    landscape_changes.append(torch.full_like(rows[0]["symmetry"][0, 0], float("nan")))
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]} | {
        "landscape": torch.stack(landscape_changes)
    }


def chunks_of_same_shape(blocks: Sequence[Heads], max_layers: int) -> Iterator[list[Heads]]:
    """Layers that follow each other and have heads of one shape, at most so many together."""
    for _, group in groupby(blocks, key=lambda heads: (heads.W_Q.shape, heads.W_K.shape, heads.W_V.shape)):
        layers = list(group)
        yield from (layers[start : start + max_layers] for start in range(0, len(layers), max_layers))


def concatenate_heads(factors: list[Factored]) -> Factored:
    return (
        factors[0]
        if len(factors) == 1
        else Factored(torch.cat([x.left for x in factors]), torch.cat([x.right for x in factors]))
    )


def layer_statistics(trace: Trace | Traces, layer: int, valid: ValidTokens) -> dict[str, Tensor]:
    """What the heads of one layer do on the text."""
    updates = head_updates(trace, layer)
    displacement = _recorded_displacement(trace, layer)
    other_displacements = [
        next_layer_displacement(trace, layer),
        *ablated_displacements(trace, layer, updates, displacement),
    ]
    cosine_distance = cosine_distances(
        zero_invalid_rows(displacement, valid),
        (zero_invalid_rows(other_displacement, valid) for other_displacement in other_displacements),
    )
    return energy_statistics(updates, valid) | {
        "landscape_update": cosine_distance[..., 0],
        "ledger": cosine_distance[..., 1:],
    }


def alignments(M: Factored, F: Factored, n_groups: int) -> dict[str, Float[Tensor, " h"]]:
    """s(M); cos⟨F, Mᵀ⟩, and how far it lies from where F Q lies at random: tr(FQM) has variance ‖MF‖²/d. All r x r.

    Heads of a group share what reads keys and values: what only these make is computed once a group.
    """
    heads_per_group = len(M.left) // n_groups
    keys, values = M.right[::heads_per_group], F.left[::heads_per_group]
    key_gram, value_gram, key_value = (
        (a @ b).repeat_interleave(heads_per_group, 0) for a, b in ((keys, keys.mT), (values.mT, values), (keys, values))
    )
    query_gram, output_gram, cross = M.left.mT @ M.left, F.right @ F.right.mT, M.right @ M.left
    squared_norm, inner = _inner(query_gram, key_gram), _inner(key_value, (F.right @ M.left).mT)
    null_sd = (_inner(key_value.mT @ query_gram @ key_value, output_gram).clamp(min=0) / M.shape[-1]).sqrt()
    return {
        "symmetry": safe_divide(_inner(cross, cross.mT), squared_norm),
        "alignment": safe_divide(inner, (squared_norm * _inner(value_gram, output_gram)).clamp(min=0).sqrt()),
        "alignment_z": safe_divide(inner, null_sd),
    }


def summed_relevance(M: Factored, n_groups: int) -> Float[Tensor, "d d"]:
    """The sum of all M of a layer. Heads that share a key add up on the side of the queries: QKᵀ + Q'Kᵀ = (Q + Q')Kᵀ."""
    queries, keys = M.left.unflatten(0, (n_groups, -1)).sum(1), M.right[:: len(M.left) // n_groups]
    return queries.transpose(0, 1).flatten(1) @ keys.flatten(0, 1)


# One layer's heads


def energy_statistics(updates: HeadUpdates, valid: ValidTokens) -> dict[str, PerHead]:
    """Λ before and after, the first order, and the cosine with its null."""
    first_order, energy_after = energy_after_move(updates, 1.0)
    mean_before, mean_after, mean_first_order = (
        masked_mean(part, valid) for part in (updates.energy, energy_after, first_order)
    )
    return {
        "energy": mean_before,
        "energy_after": mean_after,
        "first_order": mean_first_order,
        "remainder": masked_mean(energy_after - updates.energy - first_order, valid),
    } | gradient_cosines(updates, valid)


def energy_after_move(updates: HeadUpdates, fraction: float) -> tuple[Float[Tensor, "*b h n"], Float[Tensor, "*b h n"]]:
    """⟨∇Λ_i, share Δ_i⟩ through the norm, and Λ_i after x_i + share Δ_i: from inner products of tokens, queries and Δ.

    x̂ = r x C, so that a move by Δ gives dx̂ = r (ΔC − x̂ ⟨x̂, Δ⟩/d) and 1/r'² = 1/r² + (2⟨xC, Δ⟩ + ‖ΔC‖²)/d.
    """
    norm, r, d = updates.landscape.heads.norm, updates.norm_scale[..., None, :, 0], updates.x_hat.shape[-1]
    mixed_values = fraction * updates.mixed_values
    query_shift = mixed_values @ updates.output_to_query
    query_climb = (query_shift * updates.query_gradient).sum(-1)
    if norm.eps is None:
        return query_climb, updates.landscape.energies(updates.unbiased_queries + query_shift + updates.query_bias)
    x_hat_on_outputs = mixed_precision_matmul(
        updates.to_model_precision(updates.x_hat), updates.output_map.flatten(0, 1).mT
    )
    x_hat_on_outputs = x_hat_on_outputs.unflatten(-1, updates.output_map.shape[:2]).transpose(-3, -2)
    x_hat_dot_delta = (mixed_values * x_hat_on_outputs).sum(-1)
    first_order = r * (query_climb - (updates.query_gradient * updates.unbiased_queries).sum(-1) * x_hat_dot_delta / d)
    output_gram = (
        norm.centre(updates.output_map) @ updates.output_map.mT if norm.subtracts_mean else updates.output_gram
    )
    inverse_scale_squared = r**-2 + (2 * x_hat_dot_delta / r + (mixed_values @ output_gram * mixed_values).sum(-1)) / d
    new_queries = inverse_scale_squared.clamp(min=norm.eps).rsqrt()[..., None] * (
        updates.unbiased_queries / r[..., None] + query_shift
    )
    return first_order, updates.landscape.energies(new_queries + updates.query_bias)


def gradient_cosines(updates: HeadUpdates, valid: ValidTokens) -> dict[str, PerHead]:
    """cos(Δ, ∇Λ) and what it would be if F were turned at random, from r x r matrices.

    ⟨ΔQ, G⟩ = tr(Q GᵀΔ) has mean 0 and variance ‖ΔᵀG‖²/d over all orthogonal Q.
    """
    mixed_values, query_gradient, query_gram = (
        zero_invalid_rows(updates.mixed_values, valid),
        zero_invalid_rows(updates.query_gradient, valid),
        updates.query_weights.mT @ updates.query_weights,
    )
    cross_moment = mixed_values.mT @ query_gradient
    squared_norms = (
        (mixed_values.mT @ mixed_values * updates.output_gram).sum((-2, -1)),
        (query_gradient.mT @ query_gradient * query_gram).sum((-2, -1)),
    )
    norm_product = squared_norms[0].clamp(min=0).sqrt() * squared_norms[1].clamp(min=0).sqrt()
    inner_sd = (cross_moment.mT @ updates.output_gram @ cross_moment * query_gram).sum((-2, -1)).clamp(
        min=0
    ).sqrt() / updates.x_hat.shape[-1] ** 0.5
    inner = (cross_moment * updates.output_to_query).sum((-2, -1))
    shared_inner = (mixed_values.sum(-2)[..., None, :] @ updates.output_to_query @ query_gradient.sum(-2)[..., None])[
        ..., 0, 0
    ]
    shared_inner = shared_inner / valid_counts(updates.energy, valid)
    return {
        "cosine": safe_divide(inner, norm_product),
        "cosine_null": torch.zeros_like(inner),
        "cosine_null_sd": safe_divide(inner_sd, norm_product),
        "cosine_shared": safe_divide(shared_inner, norm_product),
        "z": safe_divide(inner, inner_sd),
    }


# What stands between a layer and a gradient flow


def next_layer_displacement(trace: Trace | Traces, layer: int) -> Cloud:
    """What the attention of the next layer does to this layer's cloud; NaN at the last layer."""
    if layer + 1 == trace.view.layers:
        return torch.full_like(at_least_float32(_points_at(trace, 0)), float("nan"))
    next_heads = trace.view.layer_heads[layer + 1]
    mechanism, projections = (
        next_heads.mechanism.with_mask(padding_mask(trace, layer + 1)),
        next_heads.qkv(trace.view.to_model_precision(trace.layer_input(layer))),
    )
    return attention_displacement(next_heads, mechanism, trace.layer_input(layer), *projections).reshape(
        _points_at(trace, 0).shape
    )


def ablated_displacements(trace: Trace | Traces, layer: int, updates: HeadUpdates, displacement: Cloud) -> list[Cloud]:
    """The attention's displacement `own` without mask, norm, position and MLP."""
    heads, mechanism = updates.landscape.heads, updates.landscape.heads.mechanism
    padding = trace.padding if isinstance(trace, Traces) else None
    without_mask, without_position = replace(mechanism, mask=NoMask()), replace(mechanism, position=NoPosition())
    x, projections = (
        at_least_float32(trace.layer_input(layer)),
        [trace.view.to_model_precision(part) for part in updates.projections()],
    )
    return [
        displacement
        if mechanism.mask.allows_all
        else attention_displacement(heads, without_mask.with_mask(padding), x, *projections).reshape(
            displacement.shape
        ),
        _displacement_after_norm(updates, trace, layer, x, displacement),
        displacement
        if mechanism.position.is_trivial
        else attention_displacement(
            heads, without_position.with_mask(padding_mask(trace, layer)), x, *projections
        ).reshape(displacement.shape),
        at_least_float32(_points_at(trace, last_step_of_layer(trace, layer))) - x,
    ]


def _displacement_after_norm(
    updates: HeadUpdates, trace: Trace | Traces, layer: int, x: Cloud, displacement: Cloud
) -> Cloud:
    """What the displacement becomes through the norm: of x̂ where the norm comes before, of the sum where it comes after."""
    middle = trace.mid_steps[layer]
    if trace.steps[middle].is_sum:
        return at_least_float32(_points_at(trace, middle + 1)) - x
    return updates.landscape.heads.norm.normalise(x + displacement) - updates.x_hat


def attention_displacement(
    heads: Heads, mechanism: Mechanism, x: Cloud, q: Tensor, k: Tensor, v: Tensor
) -> Float[Tensor, "b n d"]:
    """What the attention of a layer adds to clouds when its weights are computed by `mechanism`."""
    out = heads.apply_gate(mechanism.attend(q, k, v), x).transpose(1, 2).flatten(2)
    total = mixed_precision_matmul(out, heads.W_O.flatten(0, 1)) + (0 if heads.b_O is None else heads.b_O)
    if heads.output_norm is None:
        return total
    return total * heads.output_norm_scale(total) + (0 if heads.output_norm.bias is None else heads.output_norm.bias)


def cosine_distances(a: Cloud, candidates: Iterable[Cloud]) -> Float[Tensor, "*b others"]:
    """1 − cos of an array and of each of several, as vectors; 0 where one of the two is 0."""
    a = a.flatten(-2)
    pairs = [(torch.linalg.vecdot(a, b), b.norm(dim=-1)) for b in (candidate.flatten(-2) for candidate in candidates)]
    inner, norms = (torch.stack(part, -1) for part in zip(*pairs, strict=True))
    norms = a.norm(dim=-1)[..., None] * norms
    return torch.where(norms == 0, 0, 1 - inner / torch.where(norms == 0, 1, norms))


def _recorded_displacement(trace: Trace | Traces, layer: int) -> Cloud:
    return at_least_float32(_points_at(trace, trace.mid_steps[layer])) - at_least_float32(
        _points_at(trace, trace.input_steps[layer])
    )


def _points_at(trace: Trace | Traces, point: int) -> Cloud:
    return trace.points[..., point, :, :]


# The answer


def joint_q_values(z: Float[Tensor, "*b layer h"], alignment_z: Float[Tensor, "*b layer h"]) -> Tensor:
    """q-values of "both are higher than chance", text by text: the larger of two p-values is one for the pair."""
    p = torch.maximum(*(normal_one_sided_p(x.double()) for x in (z, alignment_z)))
    return q_values_per_row(p.reshape(-1, p.shape[-2:].numel())).reshape(p.shape)


def _to_dataset(trace: Trace, values: dict[str, Tensor], keep_massive: bool) -> "xarray.Dataset":
    q_values = joint_q_values(values["z"], values["alignment_z"])
    attributes = {
        "space": "x̂",
        "massive": trace.massive_tokens(),
        "keep_massive": int(keep_massive),
        "null": "F Q for all orthogonal Q: mean and spread in closed form, tails of a normal law",
        "level": FDR_LEVEL,
        "tested": q_values.numel(),
        "found": int((q_values <= FDR_LEVEL).sum()),
        "found_expected_false": FDR_LEVEL * int((q_values <= FDR_LEVEL).sum()),
        "found_expected_under_null": f"at most one, with a chance of {FDR_LEVEL:.0%}",
    }
    coords = {"layer": range(trace.view.layers), "head": range(trace.view.heads)}
    result = values | {"q_value": q_values, "gradient_like": q_values <= FDR_LEVEL}
    return ENERGY.label(result, coords | {"difference": list(LEDGER_PARTS)}, attributes | trace.provenance)


def _inner(a: Float[Tensor, "h r s"], b: Float[Tensor, "h r s"]) -> Float[Tensor, " h"]:
    return (a * b).sum((-2, -1))


ENERGY = Analysis(
    name="energy",
    question="Does each head move tokens up its own energy, and what keeps the layers from being a gradient flow?",
    ask=energy,
    batch=batch,
    needs="trace",
    controls=1,
    long_text_controls=False,
    fields={
        "energy": Field(
            ("layer", "head"),
            "Λ = mean over tokens of log((1/n_i) Σ_j e^{s_ij}) over permitted keys j: the head's own scores on x̂, "
            "without the bias of keys where it is constant along a row and softmax cannot see it",
            unit="nats",
        ),
        "energy_after": Field(
            ("layer", "head"),
            "Λ after this head's own Δ_h is added to every query, x̂ taken anew through the norm, the keys as they were",
            unit="nats",
        ),
        "first_order": Field(
            ("layer", "head"),
            "⟨∇Λ, Δ_h⟩ by the query-side gradient through the norm: what a small step of Δ_h changes Λ by",
            unit="nats",
        ),
        "remainder": Field(
            ("layer", "head"), "energy_after − energy − first_order: what the size of the step adds", unit="nats"
        ),
        "cosine": Field(
            ("layer", "head"),
            "cos(Δ_h, ∇Λ) over the whole cloud, ∇Λ = Σ_j α_ij x̂_j Mᵀ by x̂: 1 where the head moves tokens straight up its energy",
            null="cosine_null",
            null_sd="cosine_null_sd",
        ),
        "cosine_null": Field(
            ("layer", "head"),
            "mean of the same when F is turned at random (F Q, Q orthogonal: the same singular values): 0",
        ),
        "cosine_null_sd": Field(
            ("layer", "head"), "standard deviation of the same over all Q, exact: ‖Δ_hᵀ∇Λ‖/(√d ‖Δ_h‖ ‖∇Λ‖)"
        ),
        "cosine_shared": Field(
            ("layer", "head"),
            "mean of the same with Δ_h permuted among the tokens: what tokens have in common, not what each one does",
        ),
        "z": Field(("layer", "head"), "(cosine − cosine_null)/cosine_null_sd"),
        "alignment": Field(
            ("layer", "head"), "cos⟨F, Mᵀ⟩: 1 where the head moves tokens up its own relevance, whatever the text"
        ),
        "alignment_z": Field(
            ("layer", "head"), "alignment over its standard deviation when F is turned at random, ‖MF‖/(√d ‖M‖ ‖F‖)"
        ),
        "q_value": Field(
            ("layer", "head"),
            "share of false findings when this head and all less likely ones are called gradient-like (Benjamini–Hochberg), "
            "from the larger of the one-sided p-values of cosine and alignment",
        ),
        "gradient_like": Field(("layer", "head"), "q_value ≤ 0.05: both cosine and alignment are higher than chance"),
        "symmetry": Field(
            ("layer", "head"), "tr(MM)/tr(MMᵀ): 1 where relevance is mutual, so that keys climb as queries do"
        ),
        "landscape": Field(
            ("layer",),
            "1 − cos of the head-summed M of this layer and the next: 0 the same landscape; NaN at the last layer",
        ),
        "landscape_update": Field(
            ("layer",),
            "1 − cos of what the attention of this layer and of the next do to this layer's cloud; NaN at the last layer",
        ),
        "ledger": Field(
            ("layer", "difference"),
            "1 − cos of what the layer's attention does to its cloud with and without a part, 0 where it makes no difference: "
            "mask (every key permitted), norm (Δ against what it does to x̂), position (no rotation, no bias of place), "
            "mlp (Δ of attention against that of the whole layer)",
        ),
    },
)
