"""Mean cosines and participation ratios of many clouds at once, from inner products."""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rheoscope.space.float32_products import pairwise_inner, rounded_difference, weighted_sums
from rheoscope.space.masked_means import ValidTokens, fill_invalid, zero_invalid_rows

CloudChunk = Float[Tensor, "_ b n d"]
PerCloud = Float[Tensor, "b p"]


def gathering_statistics(
    clouds: Iterable[CloudChunk], length: Float[Tensor, "p b n"], valid: ValidTokens, dtype: torch.dtype
) -> dict[str, PerCloud]:
    """Centred and uncentred mean cosines and the participation ratio of p clouds per text; `length` is ‖x‖.

    `clouds` yields chunks that fit on the device. Centred points are rounded to `dtype`; sums are in float32 or better. In
    bfloat16 the rounding changes a participation ratio by a few parts in 100,000.
    """
    valid = None if valid is None else valid.expand(length.shape)
    length = fill_invalid(length, valid)
    tolerance = 1e-12 if length.dtype == torch.float64 else 1e-6
    min_length = tolerance * length.amax(-1, keepdim=True)  # below this a token is at the mean up to rounding
    inverse_length = torch.where(length > 0, 1 / torch.where(length > 0, length, 1), 0)
    n = length.shape[-1] if valid is None else valid.sum(-1)
    parts, n_done = [], 0
    for x in clouds:
        chunk = slice(n_done, n_done := n_done + len(x))
        parts.append(
            chunk_statistics(
                x, inverse_length[chunk], min_length[chunk], None if valid is None else valid[chunk], dtype
            )
        )
    table_norm, centred_length, direction_sums, mean = (torch.cat(column) for column in zip(*parts, strict=True))
    uncentred_sum, centred_sum = direction_sums.unbind(-2)
    total_variance = centred_length.square().sum(-1)
    has_spread = total_variance > length.shape[-1] * min_length[..., 0].square()
    values = {
        "mean_cosine": mean_cosine(centred_sum, centred_length > min_length, n),
        "mean_cosine_uncentred": mean_cosine(uncentred_sum + inverse_length.sum(-1)[..., None] * mean, length > 0, n),
        "participation_ratio": torch.where(
            has_spread, (total_variance / torch.where(has_spread, table_norm, 1)).square(), 0
        ),
    }
    return {name: x.mT for name, x in values.items()}


def chunk_statistics(
    x: CloudChunk, inverse_length: Tensor, min_length: Tensor, valid: ValidTokens, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The norm of each cloud's Gram matrix, the centred norm of every token, both weighted sums of centred points, and the mean."""
    x = zero_invalid_rows(x, valid)
    mean = x.sum(-2) / (x.shape[-2] if valid is None else valid.sum(-1, keepdim=True))
    centred_points = zero_invalid_rows(rounded_difference(x, mean[..., None, :], dtype), valid)
    few_tokens = x.shape[-2] <= x.shape[-1]
    table = pairwise_inner(centred_points if few_tokens else centred_points.mT)
    squared_length = (
        table.diagonal(dim1=-2, dim2=-1) if few_tokens else centred_points.to(inverse_length).square().sum(-1)
    )
    centred_length = squared_length.clamp(min=0).sqrt().to(inverse_length)
    weights = torch.stack([inverse_length, torch.where(centred_length > min_length, 1 / centred_length, 0)], -2)
    return torch.linalg.vector_norm(table, dim=(-2, -1)), centred_length, weighted_sums(weights, centred_points), mean


def mean_cosine(
    direction_sum: Float[Tensor, "p b d"], has_direction: Bool[Tensor, "p b n"], n: Tensor | int
) -> Float[Tensor, "p b"]:
    """Mean cosine of all pairs of n tokens, from the sum of their directions. Two tokens without a direction have cosine 1."""
    n_directed = has_direction.sum(-1)
    n_undirected = n - n_directed
    return (direction_sum.square().sum(-1) - n_directed + n_undirected * (n_undirected - 1)) / (n * (n - 1))
