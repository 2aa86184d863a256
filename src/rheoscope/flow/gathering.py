"""How far do clouds gather? Mean cosines and participation ratios of many clouds at once, from inner products alone."""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rheoscope.space.product import difference, inner, weighed
from rheoscope.space.texts import There, kept, kept_rows

Clouds = Float[Tensor, "b n d"]
Each = Float[Tensor, "b p"]


def gathered(
    clouds: Iterable[Clouds], length: Float[Tensor, "b p n"], there: There, dtype: torch.dtype
) -> dict[str, Each]:
    """Mean cosines around the mean and as they are, and the participation ratio, of p clouds of every text; `length` is ‖x‖.

    Around the mean points are rounded to `dtype`, and sums are in float32 or better. Rounding is at random along E: in bfloat16 it
    changes a participation ratio by some parts in a hundred thousand. What is of single numbers is done for all clouds together:
    a GPU waits for each thing that it is asked.
    """
    length = kept(length, there)
    least = (1e-12 if length.dtype == torch.float64 else 1e-6) * length.amax(
        -1
    )  # nearer to the mean is there but for rounding
    inverse = torch.where(length > 0, 1 / torch.where(length > 0, length, 1), 0)
    n = length.shape[-1] if there is None else there.sum(-1)[:, None]
    found = [of_cloud(x, inverse[:, at], least[:, at, None], there, n, dtype) for at, x in enumerate(clouds)]
    table, far, sums, mean = (torch.stack(part, 1) for part in zip(*found, strict=True))
    as_they_are, centred = sums.unbind(-2)
    total = far.square().sum(-1)
    spread = total > length.shape[-1] * least.square()
    return {
        "mean_cosine": mean_cosine(centred, far > least[..., None], n),
        "mean_cosine_uncentred": mean_cosine(as_they_are + inverse.sum(-1)[..., None] * mean, length > 0, n),
        "participation_ratio": torch.where(spread, (total / torch.where(spread, table, 1)).square(), 0),
    }


def of_cloud(
    x: Clouds, inverse: Tensor, least: Tensor, there: There, n: Tensor | int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of one cloud of every text: the length of its table of inner products, that of every token around the mean, both sums of
    directions seen from the mean, and the mean."""
    x = kept_rows(x, there)
    mean = x.sum(-2) / n
    around = kept_rows(difference(x, mean[:, None], dtype), there)
    few = x.shape[-2] <= x.shape[-1]
    table = inner(around if few else around.mT)
    square = table.diagonal(dim1=-2, dim2=-1) if few else around.to(inverse).square().sum(-1)
    far = square.clamp(min=0).sqrt().to(inverse)
    weights = torch.stack([inverse, torch.where(far > least, 1 / far, 0)], 1)
    return torch.linalg.vector_norm(table, dim=(-2, -1)), far, weighed(weights, around), mean


def mean_cosine(together: Float[Tensor, "b p d"], moving: Bool[Tensor, "b p n"], n: Tensor | int) -> Each:
    """Mean cosine of all pairs of n tokens, from the sum of the directions of those that have one; the others are alike."""
    count = moving.sum(-1)
    resting = n - count
    return (together.square().sum(-1) - count + resting * (resting - 1)) / (n * (n - 1))
