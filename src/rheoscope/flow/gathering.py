"""How far do clouds gather? Mean cosines and participation ratios of many clouds at once, from inner products alone."""

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.space.product import inner
from rheoscope.space.texts import There, centred

Clouds = Float[Tensor, "b n d"]
Each = Float[Tensor, " b"]


def gathered(x: Clouds, there: There, dtype: torch.dtype) -> dict[str, Each]:
    """Mean cosines around the mean and as they are, and the participation ratio, of a cloud of every text.

    The table of inner products is of points rounded to `dtype`, its squares are summed in float32 or better. Rounding is at random
    along E: in bfloat16 it changes a participation ratio by some parts in a million.
    """
    around = still(centred(x, there), x)
    return {
        "mean_cosine": mean_cosine(around, there),
        "mean_cosine_uncentred": mean_cosine(x, there),
        "participation_ratio": participation(around.to(dtype)),
    }


def still(around: Clouds, x: Clouds) -> Clouds:
    """Clouds around their means; tokens that stand there but for rounding are put there."""
    least = 1e-12 if x.dtype == torch.float64 else 1e-6
    longest = x.nan_to_num().norm(dim=-1).amax(-1)[:, None, None]
    return torch.where(around.norm(dim=-1, keepdim=True) <= least * longest, 0, around)


def mean_cosine(x: Clouds, there: There) -> Each:
    """Mean cosine of all pairs, from the sum of their directions; two at the origin are alike."""
    length = x.norm(dim=-1)
    counts = length > 0 if there is None else (length > 0) & there
    n = x.shape[-2] if there is None else there.sum(-1)
    moving = counts.sum(-1)
    inverse = torch.where(counts, 1 / torch.where(counts, length, 1), 0)
    x = x if there is None else torch.where(there[..., None], x, 0)
    together = (inverse[:, None] @ x).square().sum((-2, -1))
    resting = n - moving
    return (together - moving + resting * (resting - 1)) / (n * (n - 1))


def participation(around: Clouds) -> Each:
    """(Σσ²)²/Σσ⁴ of clouds around their means: tr(C)² over the sum of squares of the smaller table; 0 for a cloud of one point."""
    n, d = around.shape[-2:]
    table = inner(around if n <= d else around.mT)
    total = table.diagonal(dim1=-2, dim2=-1).sum(-1)
    squares = torch.linalg.vector_norm(table, dim=(-2, -1)).square()
    return torch.where(squares > 0, total.square() / torch.where(squares > 0, squares, 1), 0)
