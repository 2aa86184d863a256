"""How far attention is from a gradient flow: with a symmetrised M, with the energy of a whole layer, and by the gain of energy."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.flow.energy.head_updates import Cloud, HeadUpdates, sum_over_heads
from rheoscope.flow.energy.landscape import Landscape
from rheoscope.space.head import project_normalised
from rheoscope.space.masked_means import ValidTokens, masked_mean, zero_invalid_rows
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
    return Gradient(updates.query_gradient, updates.products.output_to_query, updates.products.query_gram)


def symmetric_gradient(updates: HeadUpdates) -> Gradient | None:
    """The gradient of Λ for the scores ½(s_ij + s_ji); None if scores are not dot products.

    With queries q and keys k, such a score is a dot product of ½[q_i, k_i] and [k_j, q_j].
    """
    landscape, heads = updates.landscape, updates.landscape.heads
    if not heads.is_scaled_dot:
        return None
    queries, keys = updates.positioned_queries, landscape.keys
    symmetric = Landscape(
        heads,
        replace(landscape.mechanism, score=landscape.mechanism.score.with_model_scale(heads.scale)),
        landscape.unpositioned_keys,
        torch.cat([keys, queries], -1),
    )
    gradients = symmetric.log_totals_and_gradient(torch.cat([queries, keys], -1).div_(2))[1].chunk(2, -1)
    unnormed_queries = updates.unbiased_queries + updates.query_bias
    rows = [
        landscape.pull_back(gradients[0], heads.q_norm, unnormed_queries),
        landscape.pull_back(gradients[1], heads.k_norm, unnormed_keys(updates)),
    ]
    products = updates.products
    return Gradient(torch.cat(rows, -1) / 2, products.output_to_query_and_key, products.query_and_key_gram)


def unnormed_keys(updates: HeadUpdates) -> Float[Tensor, "*b h n k"]:
    """The keys of every head before QK-norm and positions, without a bias that softmax ignores."""
    heads = updates.landscape.heads
    keys = (
        updates.landscape.unpositioned_keys
        if heads.k_norm is None
        else project_normalised(heads.norm, updates.x_hat, heads.W_K, heads.b_K, None, updates.to_model_precision)
    )
    return keys.repeat_interleave(heads.n_heads // len(heads.W_K), -3)


def layer_distance(updates: HeadUpdates, x: Cloud, valid: ValidTokens) -> dict[str, Float[Tensor, "*b"]]:
    """The cosine of the summed update with the gradient of the summed Λ, its null, and the gain of energy.

    `dissipation` divides the change of Σ_h Λ_h by that of a step of the same length along the gradient. It is NaN where such a
    step does not raise the energy.
    """
    update, gradient = (
        zero_invalid_rows(cloud, valid)
        for cloud in (sum_over_heads(updates.mixed_values, updates.output_map), updates.gradient_cloud())
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


def summed_energy(updates: HeadUpdates, x: Cloud, valid: ValidTokens) -> Float[Tensor, "*b"]:
    """Σ_h Λ_h with the queries of the cloud x and the keys of the original one."""
    heads, round_input = updates.landscape.heads, updates.to_model_precision
    queries = project_normalised(heads.norm, heads.norm.normalise(x), heads.W_Q, heads.b_Q, None, round_input)
    return _summed(updates.landscape.energies(queries), valid)


def _summed(energies: Float[Tensor, "*b h n"], valid: ValidTokens) -> Float[Tensor, "*b"]:
    return masked_mean(energies, valid).sum(-1)
