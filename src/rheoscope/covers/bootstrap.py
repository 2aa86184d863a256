"""Intervals by drawing texts (or chunks of them, or prompts) anew."""

import torch
from jaxtyping import Float
from torch import Generator, Tensor

RESAMPLES = 2000
CHUNK = 32
"""Tokens of a unit where there are few texts."""
FEWEST = 5
"""Units below which a bootstrap says nothing."""
Ends = tuple[Float[Tensor, "*c"], Float[Tensor, "*c"]]


def interval(
    costs: Float[Tensor, "change m"], lengths: list[int], generator: Generator
) -> tuple[Float[Tensor, " change"], Float[Tensor, " change"], str]:
    """The 95 % interval of the mean cost when texts (or, where they are few, chunks of them) are drawn anew; NaN for too few."""
    sizes = units(lengths)
    sums = torch.stack([part.sum(-1) for part in costs.split(sizes, -1)], -1)
    return *resampled(sums, sizes, generator), unit(lengths)


def unit(lengths: list[int]) -> str:
    """What is drawn anew, in words."""
    return "texts" if len(lengths) >= FEWEST else f"chunks of {CHUNK} tokens"


def units(lengths: list[int]) -> list[int]:
    """Tokens of every unit, text after text: whole texts, or chunks of each where texts are few."""
    if len(lengths) >= FEWEST:
        return lengths
    return [min(CHUNK, length - at) for length in lengths for at in range(0, length, CHUNK)]


def resampled(sums: Float[Tensor, "*c u"], sizes: list[int], generator: Generator) -> Ends:
    """The 95 % interval of a mean over units, of which sums and sizes are known, when units are drawn anew; NaN for too few."""
    return ends(redrawn(sums, sizes, generator))


def redrawn(sums: Float[Tensor, "*c u"], sizes: list[int], generator: Generator) -> Float[Tensor, "*c resamples"]:
    """The mean over units drawn anew, again and again, the same units for all rows; NaN for too few."""
    if len(sizes) < FEWEST:
        return torch.full((*sums.shape[:-1], 1), torch.nan, dtype=sums.dtype)
    drawn = torch.randint(len(sizes), (RESAMPLES, len(sizes)), generator=generator)
    times = torch.zeros(drawn.shape, dtype=sums.dtype).scatter_add_(1, drawn, torch.ones(drawn.shape, dtype=sums.dtype))
    return sums @ times.mT / (times @ torch.tensor(sizes, dtype=sums.dtype))


def ends(means: Float[Tensor, "*c resamples"]) -> Ends:
    """Where the middle 95 % of them begin and end."""
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=means.dtype), -1)
    return low, high
