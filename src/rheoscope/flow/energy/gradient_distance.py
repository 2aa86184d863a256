"""How far attention is from a gradient flow: with a symmetrised M, with the energy of a whole layer, and by the gain of energy."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.definition import repeat_kv_heads
from rheoscope.flow.energy.head_updates import Cloud, HeadUpdates
from rheoscope.flow.energy.landscape import Landscape
from rheoscope.space.autograd_pullback import pullback_by_autograd
from rheoscope.space.head import project_normalised
from rheoscope.space.masked_means import ValidTokens, masked_mean, zero_invalid_rows
from rheoscope.space.model_parts import Norm
from rheoscope.space.safe_arithmetic import safe_divide

PerHeadRows = Float[Tensor, "*b h n k"]


@dataclass(frozen=True, eq=False)
class Gradient:
    """A gradient per head as `rows` (n, k) weightsᵀ, known by `output_to_rows` = output_map weights and `gram` = weightsᵀ weights."""

    rows: PerHeadRows
    output_to_rows: Float[Tensor, "h e k"]
    gram: Float[Tensor, "h k k"]


def own_gradient(updates: HeadUpdates) -> Gradient:
    """The gradient of Λ with the scores of the head."""
    return Gradient(updates.query_gradient, updates.output_to_query, updates.query_gram)


def symmetric_gradient(updates: HeadUpdates) -> Gradient | None:
    """The gradient of Λ for the scores ½(s_ij + s_ji); None if scores are not dot products.

    With queries q and keys k, such a score is a dot product of ½[q_i, k_i] and [k_j, q_j].
    """
    landscape, heads = updates.landscape, updates.landscape.heads
    if not heads.is_scaled_dot:
        return None
    queries = _batched(updates.unbiased_queries + updates.query_bias)
    keys = repeat_kv_heads(_batched(unnormed_keys(updates)), heads.n_heads)
    positions = torch.arange(queries.shape[-2], device=queries.device)
    with torch.enable_grad():
        leaves = torch.cat([queries, keys], -1).detach().requires_grad_()
        q, k = leaves.chunk(2, -1)
        sides = [
            landscape.mechanism.position.encode(qk_normed(norm, x), positions)
            for norm, x in ((heads.q_norm, q), (heads.k_norm, k))
        ]
        symmetric_queries = torch.cat(sides, -1) / 2
    symmetric = Landscape(
        heads,
        replace(landscape.mechanism, score=landscape.mechanism.score.with_model_scale(heads.scale)),
        torch.cat([k, q], -1).detach(),
        torch.cat([x.detach() for x in reversed(sides)], -1),
    )
    gradient = symmetric.log_totals_and_gradient(symmetric_queries.detach())[1]
    rows = pullback_by_autograd(symmetric_queries, leaves, gradient).reshape(*updates.energy.shape, -1)
    return _gradient_of_both(updates, rows)


def _gradient_of_both(updates: HeadUpdates, rows: PerHeadRows) -> Gradient:
    """The gradient with rows for the queries and for the keys. The products with key weights serve all heads of a group."""
    heads, key_weights = (
        updates.landscape.heads,
        updates.landscape.heads.norm.fold(updates.landscape.heads.W_K.to(rows)),
    )
    output_to_key, query_key = (
        (maps.unflatten(0, (len(key_weights), -1)).flatten(1, 2) @ key_weights)
        .unflatten(1, (-1, maps.shape[1]))
        .flatten(0, 1)
        for maps in (updates.output_map, updates.query_weights.mT)
    )
    key_gram = (key_weights.mT @ key_weights).repeat_interleave(heads.n_heads // len(key_weights), 0)
    gram = torch.cat([torch.cat([updates.query_gram, query_key], -1), torch.cat([query_key.mT, key_gram], -1)], -2)
    return Gradient(rows, torch.cat([updates.output_to_query, output_to_key], -1), gram)


def unnormed_keys(updates: HeadUpdates) -> Float[Tensor, "*b g n k"]:
    """The keys before QK-norm and positions, without a bias that softmax ignores."""
    heads = updates.landscape.heads
    if heads.k_norm is None:
        return updates.landscape.unpositioned_keys
    return project_normalised(heads.norm, updates.x_hat, heads.W_K, heads.b_K, None, updates.to_model_precision)


def qk_normed(norm: Norm | None, x: PerHeadRows) -> PerHeadRows:
    """Queries or keys after their QK-norm, if there is one."""
    return x if norm is None else norm.normed(x)


def layer_distance(updates: HeadUpdates, x: Cloud, valid: ValidTokens) -> dict[str, Float[Tensor, "*b"]]:
    """The cosine of the summed update with the gradient of the summed Λ, its null, and the gain of energy.

    `dissipation` divides the change of Σ_h Λ_h by that of a step of the same length along the gradient. It is NaN where such a
    step does not raise the energy.
    """
    update, gradient = (
        zero_invalid_rows(sum_over_heads(rows, maps), valid)
        for rows, maps in (
            (updates.mixed_values, updates.output_map),
            (updates.query_gradient, updates.query_weights.mT),
        )
    )
    lengths = [cloud.flatten(-2).norm(dim=-1) for cloud in (update, gradient)]
    inner, norm_product = (update * gradient).sum((-2, -1)), lengths[0] * lengths[1]
    inner_sd = (update.mT @ gradient).flatten(-2).norm(dim=-1) / x.shape[-1] ** 0.5
    steepest = gradient * safe_divide(lengths[0], lengths[1])[..., None, None]
    gains = [summed_energy(updates, x + step, valid) - _summed(updates.energy, valid) for step in (update, steepest)]
    return {
        "layer_cosine": safe_divide(inner, norm_product),
        "layer_cosine_null": torch.zeros_like(inner),
        "layer_cosine_null_sd": safe_divide(inner_sd, norm_product),
        "dissipation": torch.where(gains[1] > 0, gains[0] / gains[1], torch.nan),
    }


def sum_over_heads(rows: PerHeadRows, maps: Float[Tensor, "h k d"]) -> Cloud:
    """Σ_h rows_h maps_h, as one product."""
    return rows.transpose(-3, -2).flatten(-2) @ maps.flatten(0, 1)


def summed_energy(updates: HeadUpdates, x: Cloud, valid: ValidTokens) -> Float[Tensor, "*b"]:
    """Σ_h Λ_h with the queries of the cloud x and the keys of the original one."""
    heads, round_input = updates.landscape.heads, updates.to_model_precision
    queries = project_normalised(heads.norm, heads.norm.normalise(x), heads.W_Q, heads.b_Q, None, round_input)
    return _summed(updates.landscape.energies(queries), valid)


def _summed(energies: Float[Tensor, "*b h n"], valid: ValidTokens) -> Float[Tensor, "*b"]:
    return masked_mean(energies, valid).sum(-1)


def _batched(x: PerHeadRows) -> Float[Tensor, "b h n k"]:
    return x if x.ndim == 4 else x[None]
