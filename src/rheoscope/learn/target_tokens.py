"""Tokens until a target loss, and their ratio to the baseline's with an interval. Runs that never reach it are censored."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.statistics.intervals import median_interval


@dataclass(frozen=True)
class TokenRatio:
    """Tokens of an entrant over tokens of the baseline: the median over seeds and its 95 % interval."""

    median: float
    low: float
    high: float


def interpolate_target_tokens(
    target: float, tokens: Float[Tensor, " t"], loss: Float[Tensor, "s t"]
) -> Float[Tensor, " s"]:
    """The number of tokens after which each seed first reaches the target loss; ∞ if it never does.

    Between two evaluations the loss is interpolated linearly.

    >>> tokens, loss = torch.tensor([0.0, 100.0, 200.0]), torch.tensor([[4.0, 3.0, 2.0], [4.0, 3.5, 3.2]])
    >>> interpolate_target_tokens(2.5, tokens, loss).tolist()
    [150.0, inf]
    """
    is_reached = loss <= target  # False for NaN
    first_index = is_reached.double().argmax(-1)
    previous_index = (first_index - 1).clamp(min=0)
    first_loss, previous_loss = (loss.gather(-1, index[:, None]).squeeze(-1) for index in (first_index, previous_index))
    fraction = torch.where(first_index > 0, (previous_loss - target) / (previous_loss - first_loss), 1.0)
    n_tokens = tokens[previous_index] + fraction * (tokens[first_index] - tokens[previous_index])
    return torch.where(is_reached.any(-1), n_tokens, torch.inf)


def tokens_ratio(
    entrant_tokens: Float[Tensor, " s"], baseline_tokens: Float[Tensor, " s"], trained_tokens: float
) -> TokenRatio:
    """Tokens of the entrant over tokens of the baseline, each until the target.

    A run that has not reached the target after `trained_tokens` is censored, not dropped: the ratio of its pair lies
    between two bounds, and the interval covers the median wherever the ratio lies. For the median itself, an entrant
    that never reaches the target counts as ∞. The median is NaN if censored seeds of the baseline leave it open.

    The interval lies between order statistics, where the percentile bootstrap over seeds also puts its ends. It
    interpolates between them, so that it covers in 95 % of races at every number of seeds.

    >>> ratio = tokens_ratio(torch.tensor([90.0, 80.0, torch.inf]), torch.tensor([100.0, 100.0, 100.0]), 100.0)
    >>> round(ratio.median, 2), ratio.low
    (0.9, nan)
    """
    low, high = ratio_bounds(entrant_tokens, baseline_tokens, trained_tokens)
    if not len(low):
        return TokenRatio(torch.nan, torch.nan, torch.nan)
    lowest, highest = _median(torch.where(high.isinf(), high, low)), _median(high)
    median = float(highest) if lowest == highest else torch.nan
    return TokenRatio(median, float(median_interval(low)[0]), float(median_interval(high)[1]))


def ratio_bounds(
    entrant_tokens: Float[Tensor, " s"], baseline_tokens: Float[Tensor, " s"], trained_tokens: float
) -> tuple[Float[Tensor, " r"], Float[Tensor, " r"]]:
    """The bounds of each pair's ratio. They differ if a run is censored. Pairs that both start at the target are left out.

    >>> never = torch.inf
    >>> low, high = ratio_bounds(torch.tensor([50.0, never, 50.0, never]), torch.tensor([40.0, 40.0, never, never]), 100.0)
    >>> low.tolist(), high.tolist()
    ([1.25, 2.5, 0.0, 0.0], [1.25, inf, 0.5, inf])
    """
    low = entrant_tokens.clamp(max=trained_tokens) / baseline_tokens
    high = entrant_tokens / baseline_tokens.clamp(max=trained_tokens)
    is_defined = ~(low.isnan() | high.isnan())
    return low[is_defined], high[is_defined]


def _median(x: Float[Tensor, " s"]) -> Float[Tensor, ""]:
    """The median; the mean of the central two for an even number."""
    return x.sort().values[[(len(x) - 1) // 2, len(x) // 2]].mean()
