"""How far do clouds gather? Mean cosines and participation ratios of many clouds at once, from inner products alone."""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rheoscope.space.float32_products import difference, inner, weighed
from rheoscope.space.masked_means import There, kept, kept_rows

Clouds = Float[Tensor, "_ b n d"]
Each = Float[Tensor, "b p"]


def gathered(
    clouds: Iterable[Clouds], length: Float[Tensor, "p b n"], there: There, dtype: torch.dtype
) -> dict[str, Each]:
    """Mean cosines around the mean and as they are, and the participation ratio, of p clouds of every text; `length` is ‖x‖.

    `clouds` come some at a time, as many as the device shall hold. Around the mean points are rounded to `dtype`, and sums are in
    float32 or better. Rounding is at random along E: in bfloat16 it changes a participation ratio by some parts in a hundred
    thousand.
    """
    there = None if there is None else there.expand(length.shape)
    length = kept(length, there)
    nearest = 1e-12 if length.dtype == torch.float64 else 1e-6
    least = nearest * length.amax(-1, keepdim=True)  # nearer to the mean is there but for rounding
    inverse = torch.where(length > 0, 1 / torch.where(length > 0, length, 1), 0)
    n = length.shape[-1] if there is None else there.sum(-1)
    found, done = [], 0
    for x in clouds:
        some = slice(done, done := done + len(x))
        found.append(of_clouds(x, inverse[some], least[some], None if there is None else there[some], dtype))
    table, far, sums, mean = (torch.cat(part) for part in zip(*found, strict=True))
    as_they_are, centred = sums.unbind(-2)
    total = far.square().sum(-1)
    spread = total > length.shape[-1] * least[..., 0].square()
    each = {
        "mean_cosine": mean_cosine(centred, far > least, n),
        "mean_cosine_uncentred": mean_cosine(as_they_are + inverse.sum(-1)[..., None] * mean, length > 0, n),
        "participation_ratio": torch.where(spread, (total / torch.where(spread, table, 1)).square(), 0),
    }
    return {name: x.mT for name, x in each.items()}


def of_clouds(
    x: Clouds, inverse: Tensor, least: Tensor, there: There, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The length of each cloud's table of inner products, that of every token around the mean, both sums of directions seen from
    the mean, and the mean."""
    x = kept_rows(x, there)
    mean = x.sum(-2) / (x.shape[-2] if there is None else there.sum(-1, keepdim=True))
    around = kept_rows(difference(x, mean[..., None, :], dtype), there)
    few = x.shape[-2] <= x.shape[-1]
    table = inner(around if few else around.mT)
    square = table.diagonal(dim1=-2, dim2=-1) if few else around.to(inverse).square().sum(-1)
    far = square.clamp(min=0).sqrt().to(inverse)
    weights = torch.stack([inverse, torch.where(far > least, 1 / far, 0)], -2)
    return torch.linalg.vector_norm(table, dim=(-2, -1)), far, weighed(weights, around), mean


def mean_cosine(
    together: Float[Tensor, "p b d"], moving: Bool[Tensor, "p b n"], n: Tensor | int
) -> Float[Tensor, "p b"]:
    """Mean cosine of all pairs of n tokens, from the sum of the directions of those that have one; the others are alike."""
    count = moving.sum(-1)
    resting = n - count
    return (together.square().sum(-1) - count + resting * (resting - 1)) / (n * (n - 1))
