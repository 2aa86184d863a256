"""Contrasts of entrants with the baseline: paired differences, and verdicts after Holm's correction over all of them.

    difference_s = loss of the entrant − loss of the baseline, both with seed s
    verdict      = ahead or behind if p ≤ 5 % after Holm's correction over all contrasts of the race, otherwise unclear

An entrant has two contrasts: both at their own chosen rates, and both at the baseline's rate if it ran there.

A rate is chosen from a few noisy runs. If the choice is unlucky for one side, equal entrants differ. Therefore an
entrant is ahead only if it is also ahead of the baseline at every rate at which the baseline turned out better, and
behind only if it is behind at every rate at which it turned out better itself. Without this rule, more than
5 % of races between equal entrants have a false verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.learn.curves import Curves, best_curves
from rheoscope.statistics.intervals import bootstrap_t_interval, student_interval
from rheoscope.statistics.nulls import holm_p_values, sign_test_p_values, student_two_sided_p

SIGNIFICANCE_LEVEL = 0.05
POWER = 0.9
"""The share of races in which a detectable difference is found."""
AHEAD, BEHIND, UNDECIDED = "ahead", "behind", "unclear"


@dataclass(frozen=True, eq=False)
class Difference:
    """The mean over seeds of entrant − baseline.

    With 95 % intervals (Student's t and bootstrap-t; NaN for fewer than 4 seeds) and the two-sided p value.
    """

    mean: Float[Tensor, "*c"]
    low: Float[Tensor, "*c"]
    high: Float[Tensor, "*c"]
    bootstrap_low: Float[Tensor, "*c"]
    bootstrap_high: Float[Tensor, "*c"]
    sd: Float[Tensor, "*c"]
    p: Float[Tensor, "*c"]
    is_behind: Tensor


@dataclass(frozen=True, eq=False)
class Contrast:
    """A difference with its p value after Holm's correction and its verdict."""

    difference: Difference
    p_holm: float
    verdict: str


@dataclass(frozen=True, eq=False)
class RateCandidates:
    """The curves of an entrant at all its rates, and those at the rate that was chosen for it."""

    all_rates: Sequence[Curves]
    chosen: Curves

    def at_rate(self, rate: float) -> Curves | None:
        """The curves at a rate; None if the entrant did not run at it."""
        return next((curves for curves in self.all_rates if curves.rate == rate), None)

    def best(self, seeds: slice) -> Curves:
        """The curves at the rate that is best on these seeds. If it is not better than the chosen rate, the chosen one."""
        return best_curves([self.chosen, *self.all_rates], seeds)


def paired_difference(entrant_losses: Float[Tensor, " s"], baseline_losses: Float[Tensor, " s"]) -> Difference:
    """Compare two entrants seed by seed.

    If a seed of either diverged (NaN), the mean and its intervals use the remaining pairs. The p value then comes
    from a sign test in which a diverged run counts as behind.

    >>> difference = paired_difference(torch.tensor([1.0, 1.1, 1.2]), torch.tensor([1.3, 1.5, 1.4]))
    >>> round(float(difference.mean), 2), round(float(difference.p), 3)
    (-0.3, 0.035)
    """
    d = entrant_losses - baseline_losses
    valid = d[~d.isnan()]
    low, high = student_interval(valid)
    bootstrap_ends = bootstrap_t_interval(valid)
    is_worse = (entrant_losses.isnan() & ~baseline_losses.isnan()) | (d > 0)
    is_better = (baseline_losses.isnan() & ~entrant_losses.isnan()) | (d < 0)
    p = t_test_p_value(d) if len(valid) == len(d) else sign_test_p_values(is_worse.sum(), is_better.sum()).to(d)
    sign = valid.mean() if len(valid) == len(d) else (is_worse.sum() - is_better.sum()).double()
    sd = valid.std() if len(valid) > 1 else torch.full_like(d.sum(), torch.nan)
    return Difference(valid.mean(), low, high, *bootstrap_ends, sd, p, sign > 0)


def t_test_p_value(d: Float[Tensor, "*c s"]) -> Float[Tensor, "*c"]:
    """Two-sided p value of Student's t test that the mean is 0. NaN without spread or with fewer than 2 values.

    >>> round(float(t_test_p_value(torch.tensor([1.0, 2.0, 3.0]))), 3)
    0.074
    """
    n = d.shape[-1]
    if n < 2:
        return torch.full_like(d.mean(-1), torch.nan)
    sd = d.std(-1)
    t = d.mean(-1) / torch.where(sd > 1e-12 * d.abs().amax(-1), sd, torch.nan) * n**0.5
    return torch.where(t.isnan(), torch.nan, student_two_sided_p(t, n - 1))


def difference_at_chosen_rates(entrant: RateCandidates, baseline: RateCandidates, seeds: slice) -> Difference:
    """The difference at the chosen rates, with a p value that allows for unlucky choices.

    **Formula** p is that of the entrant at its chosen rate against the baseline at its best rate if the entrant is
    ahead, and that of the entrant at its best rate against the baseline at its chosen rate if it is behind. It is 1
    if this comparison has the other sign.

    **Laws** With one rate per entrant, or with rates chosen on the same seeds, it is the paired t test.
    """
    difference = paired_difference(entrant.chosen.final_loss[seeds], baseline.chosen.final_loss[seeds])
    if difference.is_behind:
        entrant_curves, baseline_curves = entrant.best(seeds), baseline.chosen
    else:
        entrant_curves, baseline_curves = entrant.chosen, baseline.best(seeds)
    strict = paired_difference(entrant_curves.final_loss[seeds], baseline_curves.final_loss[seeds])
    has_same_sign = bool(strict.is_behind) == bool(difference.is_behind)
    return replace(difference, p=strict.p if has_same_sign else torch.ones_like(strict.p))


def without_p_value(difference: Difference) -> Difference:
    """The difference with its interval only."""
    return replace(difference, p=torch.full_like(difference.p, torch.nan))


def verdicts(p: Float[Tensor, "*c m"], is_behind: Tensor, level: float = SIGNIFICANCE_LEVEL) -> list[str]:
    """A verdict per contrast, after Holm's correction over all of them.

    "unclear" means that the race does not separate the entrant from the baseline. It does not mean that they are
    equal.

    >>> verdicts(torch.tensor([0.001, 0.2, float("nan")]), torch.tensor([False, True, True]))
    ['ahead', 'unclear', 'unclear']
    """
    is_significant = holm_p_values(p) <= level  # False for NaN
    return [
        UNDECIDED if not significant else BEHIND if is_worse else AHEAD
        for significant, is_worse in zip(is_significant.tolist(), is_behind.tolist(), strict=True)
    ]


def make_contrasts(
    candidates: Mapping[str, RateCandidates], baseline_name: str, seeds: slice, has_new_seeds: bool
) -> dict[tuple[str, float], Contrast]:
    """All contrasts with the baseline, by entrant and rate, corrected as one family.

    An entrant whose chosen rate is the baseline's has a single contrast. Unless rates were chosen on other seeds
    (`has_new_seeds`), the baseline's rate is the one at which its seeds were lucky. A contrast at that rate then has
    an interval, but no p value.
    """
    baseline, differences = candidates[baseline_name], dict[tuple[str, float], Difference]()
    for name, entrant in candidates.items():
        if name == baseline_name:
            continue
        at_same_rate = entrant.at_rate(baseline.chosen.rate)
        if at_same_rate is not None:
            difference = paired_difference(at_same_rate.final_loss[seeds], baseline.chosen.final_loss[seeds])
            differences[name, at_same_rate.rate] = difference if has_new_seeds else without_p_value(difference)
        differences[name, entrant.chosen.rate] = difference_at_chosen_rates(entrant, baseline, seeds)
    if not differences:
        return {}
    p = torch.stack([difference.p for difference in differences.values()])
    all_verdicts = verdicts(p, torch.tensor([bool(difference.is_behind) for difference in differences.values()]))
    corrected = holm_p_values(p).tolist()
    return {
        key: Contrast(difference, p_holm, verdict)
        for (key, difference), p_holm, verdict in zip(differences.items(), corrected, all_verdicts, strict=True)
    }


def detectable_difference(sd: float, n_seeds: int, n_contrasts: int) -> float:
    """The true difference that such a race finds in 90 % of repetitions, in the strictest step of Holm's correction.

    **Formula** λ · sd / √n with P(T_λ > t_{1 − α/2m}) = .9, where T_λ is the noncentral t with n − 1 degrees of freedom.

    >>> round(detectable_difference(0.0156, 12, 15), 3), round(detectable_difference(0.037, 12, 15), 3)
    (0.024, 0.056)
    """
    if n_seeds < 2:
        return torch.nan
    from scipy.special import nctdtrinc, stdtrit  # take a while to import

    limit = stdtrit(n_seeds - 1, 1 - SIGNIFICANCE_LEVEL / (2 * n_contrasts))
    return float(nctdtrinc(n_seeds - 1, 1 - POWER, limit)) * sd / n_seeds**0.5
