"""The energy of every head, how much its update follows the gradient, and which parts of a layer deviate from it."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.block_size import block_numel
from rheoscope.flow.energy.gradient_distance import Gradient, layer_distance, own_gradient, symmetric_gradient
from rheoscope.flow.energy.head_updates import HeadUpdates, head_updates
from rheoscope.flow.energy.ledger import (
    LEDGER_PARTS,
    ablated_displacements,
    cosine_distances,
    next_layer_displacement,
    recorded_displacement,
)
from rheoscope.messages.message import Message
from rheoscope.space.analysis import Analysis, Field
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
WEIGHT_STATISTICS: WeakKeyDictionary[View, dict[str, Tensor]] = WeakKeyDictionary()
"""A View describes fixed weights, and a request for an analysis checks that the network still has them."""
Cloud = Float[Tensor, "*b n d"]
PerHead = Float[Tensor, "*b h"]


@torch.no_grad()
def energy(
    trace: Trace, keep_massive: bool = False, progress: Callable[[int, int], None] | None = None
) -> "xarray.Dataset":
    """Does each head move tokens up its own energy, and what prevents the layers from being a gradient flow?

    **Question** Is the update of this head the gradient of an energy, or is it no closer to it than a random update?

    **Formula** Λ(X̂) = (1/N) Σ_i log((1/n_i) Σ_{j permitted} e^{s_ij}). Its gradient with respect to the queries is Σ_j α_ij x̂_j Mᵀ,
    which is softmax attention with Mᵀ in place of F. Only queries move. Δ_h is the head's update without the value bias.
    `attrs["definition"]` of each field has its formula.

    **Returns** (layer, head): `energy`, `energy_after`, `first_order`, `remainder`, `cosine` with its null, `alignment`,
    `q_value`, `gradient_like`, `symmetry`, `symmetric_cosine` with its null. (layer): `landscape`, `landscape_update`,
    `layer_cosine` with its null, `dissipation`. (layer, difference): `ledger`. Massive tokens remain keys but are left
    out of every mean. `attrs` has the numbers of tested and of significant heads.

    **Laws** The gradient equals that of autograd. Λ after a small fraction t of Δ_h is Λ + t · first_order. F = cMᵀ gives cosine 1.
    With one c > 0 for all heads, layer_cosine and dissipation are 1 too. Symmetric M gives symmetric_cosine = cosine. Rotating E, or
    any other change that keeps the logits, changes nothing.

    **Source** arXiv:2312.10794 (attention as a gradient flow), arXiv:2008.02217 (the log-sum-exp energy).

    **See also** `operators` has alignment and symmetry without a text. `trajectory` reports how far each head moves the tokens.

    >>> import rheoscope as rs
    >>> result = rs.energy(rs.load().trace("The keys to the cabinet are on the table"))
    >>> result.cosine.dims, bool((abs(result.cosine) <= 1 + 1e-6).all())
    (('layer', 'head'), True)
    """
    valid = trace.valid_mask(keep_massive, min_tokens=2)
    values = kernel(trace, None if bool(valid.all()) else valid, progress) | weight_statistics(trace.view)
    return _to_dataset(trace, values, keep_massive)


@torch.no_grad()
def batch(
    traces: Traces, keep_massive: bool = False, progress: Callable[[int, int], None] | None = None
) -> dict[str, Tensor]:
    """Every field of `energy` for many texts at once."""
    values = kernel(traces, traces.valid_tokens(keep_massive, min_tokens=2), progress)
    values |= {name: x.expand(len(traces), *x.shape) for name, x in weight_statistics(traces.view).items()}
    q_values = joint_q_values(values["z"], values["alignment_z"])
    return values | {"q_value": q_values, "gradient_like": q_values <= FDR_LEVEL}


def kernel(
    trace: Trace | Traces, valid: ValidTokens, progress: Callable[[int, int], None] | None = None
) -> dict[str, Tensor]:
    """The fields that depend on the text, for one or several texts. Invalid tokens remain keys but are left out of every mean."""
    rows = []
    for layer in range(trace.view.layers):
        rows.append(layer_statistics(trace, layer, valid))
        if progress is not None:
            progress(layer + 1, trace.view.layers)
    layer_axis = trace.points.ndim - 3
    return {name: torch.stack([row[name] for row in rows], layer_axis) for name in rows[0]}


def weight_statistics(view: View) -> dict[str, Float[Tensor, "layer *h"]]:
    """The fields that depend only on the weights, computed once for every View."""
    if view not in WEIGHT_STATISTICS:
        WEIGHT_STATISTICS[view] = compute_weight_statistics(view)
    return WEIGHT_STATISTICS[view]


def compute_weight_statistics(view: View) -> dict[str, Float[Tensor, "layer *h"]]:
    """The fields that depend only on the weights. Layers are batched to avoid launch overhead."""
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
    """Chunks of at most `max_layers` consecutive layers whose heads have the same shape."""
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
    """The statistics of the heads of one layer on the text."""
    updates = head_updates(trace, layer)
    displacement = recorded_displacement(trace, layer)
    other_displacements = [
        next_layer_displacement(trace, layer),
        *ablated_displacements(trace, layer, updates, displacement),
    ]
    cosine_distance = cosine_distances(
        zero_invalid_rows(displacement, valid),
        (zero_invalid_rows(other_displacement, valid) for other_displacement in other_displacements),
    )
    return {
        **energy_statistics(updates, valid),
        **symmetric_cosines(updates, valid),
        **layer_distance(updates, at_least_float32(trace.layer_input(layer)), valid),
        "landscape_update": cosine_distance[..., 0],
        "ledger": cosine_distance[..., 1:],
    }


def alignments(M: Factored, F: Factored, n_groups: int) -> dict[str, Float[Tensor, " h"]]:
    """The symmetry of M, cos⟨F, Mᵀ⟩ and its z-score. For random orthogonal Q, tr(FQM) has variance ‖MF‖²/d.

    Only r x r matrices are computed. Heads of a group share their key and value weights, which are multiplied once per group.
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
    """The sum of all M of a layer. Heads with the same keys are summed first: QKᵀ + Q'Kᵀ = (Q + Q')Kᵀ."""
    queries, keys = M.left.unflatten(0, (n_groups, -1)).sum(1), M.right[:: len(M.left) // n_groups]
    return queries.transpose(0, 1).flatten(1) @ keys.flatten(0, 1)


# The heads of one layer


def energy_statistics(updates: HeadUpdates, valid: ValidTokens) -> dict[str, PerHead]:
    """Λ before and after the update, its first-order change, and the cosine with its null."""
    first_order, energy_after = energy_after_move(updates, 1.0)
    mean_before, mean_after, mean_first_order = (
        masked_mean(part, valid) for part in (updates.energy, energy_after, first_order)
    )
    return {
        "energy": mean_before,
        "energy_after": mean_after,
        "first_order": mean_first_order,
        "remainder": masked_mean(energy_after - updates.energy - first_order, valid),
    } | gradient_cosines(updates, own_gradient(updates), valid)


def energy_after_move(updates: HeadUpdates, fraction: float) -> tuple[Float[Tensor, "*b h n"], Float[Tensor, "*b h n"]]:
    """⟨∇Λ_i, t Δ_i⟩ through the norm, and Λ_i at x_i + t Δ_i, where t is `fraction`. Computed from inner products.

    With x̂ = r x C, an update Δ gives dx̂ = r (ΔC − x̂ ⟨x̂, Δ⟩/d) and 1/r'² = 1/r² + (2⟨xC, Δ⟩ + ‖ΔC‖²)/d.
    """
    norm, r, d = updates.landscape.heads.norm, updates.norm_scale[..., None, :, 0], updates.x_hat.shape[-1]
    mixed_values = fraction * updates.mixed_values
    query_shift = mixed_values @ updates.products.output_to_query
    query_climb = torch.linalg.vecdot(query_shift, updates.query_gradient)
    if norm.eps is None:
        return query_climb, updates.landscape.energies(updates.unbiased_queries + query_shift + updates.query_bias)
    x_hat_on_outputs = mixed_precision_matmul(
        updates.to_model_precision(updates.x_hat), updates.output_map.flatten(0, 1).mT
    )
    x_hat_on_outputs = x_hat_on_outputs.unflatten(-1, updates.output_map.shape[:2]).transpose(-3, -2)
    x_hat_dot_delta = torch.linalg.vecdot(mixed_values, x_hat_on_outputs)
    gradient_dot_query = torch.linalg.vecdot(updates.query_gradient, updates.unbiased_queries)
    first_order = r * (query_climb - gradient_dot_query * x_hat_dot_delta / d)
    centred_squared_norm = torch.linalg.vecdot(mixed_values @ updates.products.centred_output_gram, mixed_values)
    inverse_scale_squared = r**-2 + (2 * x_hat_dot_delta / r + centred_squared_norm) / d
    new_queries = inverse_scale_squared.clamp(min=norm.eps).rsqrt()[..., None] * (
        updates.unbiased_queries / r[..., None] + query_shift
    )
    return first_order, updates.landscape.energies(new_queries + updates.query_bias)


def gradient_cosines(updates: HeadUpdates, gradient: Gradient, valid: ValidTokens) -> dict[str, PerHead]:
    """cos(Δ, ∇Λ) and its null under random rotations of F, from r x r matrices.

    ⟨ΔQ, G⟩ = tr(Q GᵀΔ) has mean 0 and variance ‖ΔᵀG‖²/d over all orthogonal Q.
    """
    mixed_values, query_gradient = (zero_invalid_rows(x, valid) for x in (updates.mixed_values, gradient.rows))
    cross_moment, output_gram = mixed_values.mT @ query_gradient, updates.products.output_gram
    squared_norms = (
        (mixed_values.mT @ mixed_values * output_gram).sum((-2, -1)),
        (query_gradient.mT @ query_gradient * gradient.gram).sum((-2, -1)),
    )
    norm_product = squared_norms[0].clamp(min=0).sqrt() * squared_norms[1].clamp(min=0).sqrt()
    inner_sd = (cross_moment.mT @ output_gram @ cross_moment * gradient.gram).sum((-2, -1)).clamp(
        min=0
    ).sqrt() / updates.x_hat.shape[-1] ** 0.5
    inner = (cross_moment * gradient.output_to_rows).sum((-2, -1))
    shared_inner = (mixed_values.sum(-2)[..., None, :] @ gradient.output_to_rows @ query_gradient.sum(-2)[..., None])[
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


def symmetric_cosines(updates: HeadUpdates, valid: ValidTokens) -> dict[str, PerHead]:
    """cos(Δ, ∇Λ) with symmetrised scores, and its null; NaN if scores are not dot products."""
    gradient = symmetric_gradient(updates)
    if gradient is None:
        missing = torch.full_like(updates.energy[..., 0], float("nan"))
        return dict.fromkeys(("symmetric_cosine", "symmetric_cosine_null", "symmetric_cosine_null_sd"), missing)
    cosines = gradient_cosines(updates, gradient, valid)
    return {f"symmetric_{name}": cosines[name] for name in ("cosine", "cosine_null", "cosine_null_sd")}


# Tests and result


def joint_q_values(z: Float[Tensor, "*b layer h"], alignment_z: Float[Tensor, "*b layer h"]) -> Tensor:
    """q-values per text for "both are higher than chance". The larger of the two p-values is a p-value for both."""
    p = torch.maximum(*(normal_one_sided_p(x.double()) for x in (z, alignment_z)))
    return q_values_per_row(p.reshape(-1, p.shape[-2:].numel())).reshape(p.shape)


def _to_dataset(trace: Trace, values: dict[str, Tensor], keep_massive: bool) -> "xarray.Dataset":
    q_values = joint_q_values(values["z"], values["alignment_z"])
    attributes = {
        "space": "x̂",
        "massive": trace.massive_tokens(),
        "keep_massive": int(keep_massive),
        "null": Message("F Q for random orthogonal Q; mean and standard deviation in closed form, normal tails"),
        "level": FDR_LEVEL,
        "tested_heads": q_values.numel(),
        "gradient_like_heads": int((q_values <= FDR_LEVEL).sum()),
        "expected_false_heads": FDR_LEVEL * int((q_values <= FDR_LEVEL).sum()),
        "expected_under_null": Message("any at all with probability {level:.0f} %", level=100 * FDR_LEVEL),
    }
    coords = {"layer": range(trace.view.layers), "head": range(trace.view.heads)}
    result = values | {"q_value": q_values, "gradient_like": q_values <= FDR_LEVEL}
    return ENERGY.label(result, coords | {"difference": list(LEDGER_PARTS)}, attributes | trace.provenance)


def _inner(a: Float[Tensor, "h r s"], b: Float[Tensor, "h r s"]) -> Float[Tensor, " h"]:
    return (a * b).sum((-2, -1))


ENERGY = Analysis(
    name="energy",
    question="Does each head move tokens up its own energy, and what prevents the layers from being a gradient flow?",
    ask=energy,
    batch=batch,
    needs="trace",
    atlas=("cosine", "layer_cosine", "dissipation"),
    fields={
        "energy": Field(
            ("layer", "head"),
            "Λ, the mean over tokens of log((1/n_i) Σ_j e^{s_ij}) over permitted keys j, without key biases that softmax ignores",
            unit="nats",
        ),
        "energy_after": Field(
            ("layer", "head"),
            "Λ after adding the head's own update Δ_h to every query token, with unchanged keys",
            unit="nats",
        ),
        "first_order": Field(
            ("layer", "head"),
            "⟨∇Λ, Δ_h⟩ with the gradient through the norm, the first-order change of Λ",
            unit="nats",
        ),
        "remainder": Field(
            ("layer", "head"), "energy_after − energy − first_order, the effect of the finite step size", unit="nats"
        ),
        "cosine": Field(
            ("layer", "head"),
            "cos(Δ_h, ∇Λ) over the whole cloud, where ∇Λ = Σ_j α_ij x̂_j Mᵀ is the gradient with respect to x̂",
            null="cosine_null",
            null_sd="cosine_null_sd",
        ),
        "cosine_null": Field(
            ("layer", "head"),
            "mean of the cosine over random rotations of F (F Q with orthogonal Q), which is 0",
        ),
        "cosine_null_sd": Field(
            ("layer", "head"), "exact standard deviation of the cosine over all Q, ‖Δ_hᵀ∇Λ‖/(√d ‖Δ_h‖ ‖∇Λ‖)"
        ),
        "cosine_shared": Field(
            ("layer", "head"),
            "mean cosine after permuting Δ_h among the tokens, the part that all tokens share",
        ),
        "z": Field(("layer", "head"), "(cosine − cosine_null)/cosine_null_sd"),
        "symmetric_cosine": Field(
            ("layer", "head"),
            "cos(Δ_h, ∇Λ) with ½(s_ij + s_ji) in place of the score s_ij; NaN if scores are not dot products",
            null="symmetric_cosine_null",
            null_sd="symmetric_cosine_null_sd",
        ),
        "symmetric_cosine_null": Field(
            ("layer", "head"), "mean of symmetric_cosine over random rotations of F, which is 0"
        ),
        "symmetric_cosine_null_sd": Field(
            ("layer", "head"), "exact standard deviation of symmetric_cosine over all rotations of F"
        ),
        "layer_cosine": Field(
            ("layer",),
            "cosine of the sum of all Δ_h of a layer with the gradient of the sum of their Λ",
            null="layer_cosine_null",
            null_sd="layer_cosine_null_sd",
        ),
        "layer_cosine_null": Field(
            ("layer",), "mean of layer_cosine over random rotations of the summed update, which is 0"
        ),
        "layer_cosine_null_sd": Field(
            ("layer",), "exact standard deviation of layer_cosine over all rotations of the summed update"
        ),
        "dissipation": Field(
            ("layer",),
            "change of the summed Λ by the summed Δ_h, divided by that of an equally long step along its gradient; NaN if that lowers Λ",
        ),
        "alignment": Field(
            ("layer", "head"), "cos⟨F, Mᵀ⟩, which is 1 if the head increases its own scores on every text"
        ),
        "alignment_z": Field(
            ("layer", "head"),
            "alignment divided by its standard deviation under random rotations of F, ‖MF‖/(√d ‖M‖ ‖F‖)",
        ),
        "q_value": Field(
            ("layer", "head"),
            "false discovery rate (Benjamini–Hochberg) for the larger of the one-sided p-values of cosine and alignment",
        ),
        "gradient_like": Field(
            ("layer", "head"), "whether q_value ≤ 0.05, so that cosine and alignment are both higher than chance"
        ),
        "symmetry": Field(("layer", "head"), "tr(MM)/tr(MMᵀ), which is 1 for symmetric M"),
        "landscape": Field(
            ("layer",),
            "1 − cos between the head-summed M of this layer and of the next; NaN at the last layer",
        ),
        "landscape_update": Field(
            ("layer",),
            "1 − cos between the displacements of this layer's cloud by its own and by the next layer's attention",
        ),
        "ledger": Field(
            ("layer", "difference"),
            "1 − cos between the attention displacement and its variant: mask (no mask), norm (displacement of x̂), position (no "
            "position encoding), mlp (displacement by the whole layer)",
        ),
    },
)
