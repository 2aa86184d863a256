"""Answers to claims about a model: an interval of the effect, what random models reach, and the word that follows from both.

effect_interval     the mean effect over texts with its simultaneous interval
random_limits       how far a random model lies from the mean of random models, anywhere on a card
claim_answer        yes, no, reversed or unclear, from these numbers alone
texts_needed        the number of texts at which an unclear answer would be decided
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

CARD_LEVEL = 0.05
"""The probability that any interval of a card misses, and that any random model exceeds its limits."""
MIN_SHARED_DRAWS = 40
"""From this number of draws on, limits are order statistics of the draws. Fewer draws have Student's prediction limit."""
MIN_DRAWS = 8
MAX_TEXTS = 100_000
"""If more texts than this would be needed, the answer is that more texts cannot help."""
RESAMPLES, RESAMPLE_BLOCKS = 20_000, 20
"""Resamples of the texts for skewed effects, and the number of blocks in which they are drawn."""
MIN_VARIANCE_RATIO = 0.02
"""The variance of a resample counts as at least this share of that of the texts: a few equal texts would give infinite ratios."""
YES, NO, REVERSED, UNCLEAR = "yes", "no", "reversed", "unclear"
UNBOUNDED = (-math.inf, math.inf)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What was measured for one interval of a card.

    `effects` has one number per text, NaN for a text without one. A statistic of the weights alone has a single effect.
    `draw_means` are the mean effects of random models over the same texts. `is_reference` says that effects are differences
    from the mean of these draws, so that its error belongs to the interval. `is_skewed` says that effects have a long tail by
    their nature, so that the interval is that of the bootstrap-t. No mean effect lies outside of `bounds`: a difference of two
    shares is between −1 and 1.
    """

    effects: Float[Tensor, " text"]
    draw_means: Float[Tensor, " draw"]
    is_reference: bool
    is_skewed: bool = False
    bounds: tuple[float, float] = UNBOUNDED

    @property
    def usable_effects(self) -> Float[Tensor, " text"]:
        effects = self.effects.double()
        return effects[effects.isfinite()]

    @property
    def random_mean(self) -> float:
        """r̄: the mean effect of random models, which is 0 by definition if they are the reference."""
        return 0.0 if self.is_reference else float(self.draw_means.double().mean())

    @property
    def random_sd(self) -> float:
        """s_r: the standard deviation of the mean effect over random models."""
        return float(self.draw_means.double().std())


@dataclass(frozen=True)
class EffectInterval:
    """A mean effect, its interval, and the two variances and degrees of freedom that give its width."""

    estimate: float
    low: float
    high: float
    n_texts: int
    text_sd: float
    draw_variance: float
    n_draws: int
    level: float
    quantiles: tuple[float, float] | None = None
    """The quantiles of the studentised mean if effects are skewed; None means Student's."""
    bounds: tuple[float, float] = UNBOUNDED
    """The smallest and the largest possible mean effect. The interval ends there."""

    def with_texts(self, n_texts: int) -> "EffectInterval":
        """The interval that as many texts would have, with the same estimate and spread."""
        ends = _studentised_ends(n_texts, self.text_sd, self.draw_variance, self.n_draws, self.level, self.quantiles)
        smallest, largest = self.bounds
        low, high = (min(max(self.estimate + end, smallest), largest) for end in ends)
        return replace(self, n_texts=n_texts, low=low, high=high)


def effect_interval(evidence: Evidence, level: float) -> EffectInterval:
    """The mean effect with an interval that misses with probability `level`, by Student's t, or by the bootstrap-t.

    **Formula** se² = s_e²/n + s_r²/D, the second term only if the draws are the reference. The degrees of freedom are those of
    Welch and Satterthwaite. A statistic of the weights alone has s_e = 0. For skewed effects, the quantiles of Student's t are
    replaced by those of the studentised mean over resampled texts. The interval ends at the bounds of the effect. Every true
    effect lies within them, so the coverage is that of the whole interval, and no answer changes.

    >>> draws = torch.linspace(-1, 1, 40)
    >>> interval = effect_interval(Evidence(torch.tensor([1.0, 2.0, 3.0, 4.0]), draws, is_reference=False), 0.05)
    >>> round(interval.low, 3), round(interval.high, 3)
    (0.446, 4.554)
    >>> share = effect_interval(Evidence(torch.tensor([0.2, 0.9]), draws, is_reference=False, bounds=(-1.0, 1.0)), 0.05)
    >>> share.low, share.high  # two texts: without bounds −3.9 to 5.0
    (-1.0, 1.0)
    """
    effects, n_draws = evidence.usable_effects, len(evidence.draw_means)
    n_texts = len(effects)
    text_sd = float(effects.std()) if n_texts > 1 else 0.0
    draw_variance = evidence.random_sd**2 / n_draws if evidence.is_reference else 0.0
    estimate = float(effects.mean()) if n_texts else math.nan
    quantiles = resampled_quantiles(effects, level) if evidence.is_skewed and text_sd > 0 else None
    spread = text_sd, draw_variance, n_draws, level, quantiles, evidence.bounds
    return EffectInterval(estimate, estimate, estimate, n_texts, *spread).with_texts(n_texts)


def _studentised_ends(
    n_texts: int,
    text_sd: float,
    draw_variance: float,
    n_draws: int,
    level: float,
    quantiles: tuple[float, float] | None,
) -> tuple[float, float]:
    """The ends of an interval, relative to its estimate."""
    text_variance = text_sd**2 / n_texts if n_texts else math.nan
    variance = text_variance + draw_variance
    if variance == 0 or math.isnan(variance):
        return -variance, variance
    if quantiles is None:
        squares = text_variance**2 / max(n_texts - 1, 1) + draw_variance**2 / max(n_draws - 1, 1)
        quantile = student_quantile(1 - level / 2, variance**2 / squares)
        quantiles = -quantile, quantile
    low, high = quantiles
    return -high * math.sqrt(variance), -low * math.sqrt(variance)


def resampled_quantiles(effects: Float[Tensor, " text"], level: float) -> tuple[float, float]:
    """The quantiles of (m* − m)/e* over resampled texts that leave level/2 beyond each, always from the same resamples.

    **Source** The bootstrap-t of Efron 1981 and Hall 1988.

    >>> low, high = resampled_quantiles(torch.tensor([1.0, 2.0, 3.0, 4.0, 9.0, 5.0, 2.0, 3.0]), 0.05)
    >>> low < -high < 0  # with a long tail on the right, the interval reaches further up than down
    True
    """
    import numpy as np

    n, generator, t = len(effects), np.random.default_rng(0), []
    deviations = (effects - effects.mean()).double().cpu().numpy()
    for _ in range(RESAMPLE_BLOCKS):
        resampled = deviations[generator.integers(n, size=(RESAMPLES // RESAMPLE_BLOCKS, n), dtype=np.int32)]
        means = resampled.mean(-1)
        variances = np.maximum(np.square(resampled).mean(-1) - np.square(means), MIN_VARIANCE_RATIO * deviations.var())
        t.append(means / np.sqrt(variances / (n - 1)))
    low, high = np.quantile(np.concatenate(t), [level / 2, 1 - level / 2])
    return float(low), float(high)


def student_quantile(probability: float, degrees_of_freedom: float) -> float:
    """The quantile of Student's t, also for a fractional number of degrees of freedom.

    >>> round(student_quantile(0.975, 19), 3)
    2.093
    """
    from scipy.special import stdtrit  # takes a while to import, and only cards need it

    return float(stdtrit(degrees_of_freedom, probability))


def random_limits(evidence: Sequence[Evidence]) -> list[float]:
    """c for every interval of a card: random models stay within c of their mean everywhere on the card, in 95 % of cases.

    **Formula** Each draw is standardised by the mean and standard deviation of the others. q is the 95 % point, the order
    statistic ⌈.95 (D + 1)⌉, of the largest absolute value over all intervals with at least 40 draws. c = q s_r. Intervals with fewer
    draws have Student's prediction limit at the level .05/m, which assumes normal draws.
    """
    m = len(evidence)
    shared = [item for item in evidence if len(item.draw_means) >= MIN_SHARED_DRAWS]
    q = shared_quantile(torch.stack([item.draw_means.double() for item in shared])) if shared else math.nan
    return [
        q * item.random_sd
        if len(item.draw_means) >= MIN_SHARED_DRAWS
        else prediction_limit(item.random_sd, len(item.draw_means), CARD_LEVEL / m)
        for item in evidence
    ]


def shared_quantile(draws: Float[Tensor, "interval draw"]) -> float:
    """q: the 95 % point over draws of the largest standardised distance from the mean, over intervals.

    >>> round(shared_quantile(torch.randn(1, 9999, generator=torch.Generator().manual_seed(0)).double()), 1)
    2.0
    """
    n_draws = draws.shape[-1]
    largest = leave_one_out_scores(draws).abs().amax(0).sort().values
    return float(largest[min(math.ceil((1 - CARD_LEVEL) * (n_draws + 1)), n_draws) - 1])


def leave_one_out_scores(draws: Float[Tensor, "interval draw"]) -> Float[Tensor, "interval draw"]:
    """Each draw minus the mean of the others, divided by their standard deviation; 0 if the others do not differ.

    >>> round(float(leave_one_out_scores(torch.tensor([[0.0, 2.0, 5.0]]))[0, 2]), 3)
    2.828
    """
    n = draws.shape[-1]
    deviation = draws - draws.mean(-1, keepdim=True)
    squares = deviation.square().sum(-1, keepdim=True) - deviation.square() * n / (n - 1)
    sd = (squares.clamp(min=0) / (n - 2)).sqrt()
    return torch.where(sd > 0, deviation * n / (n - 1) / torch.where(sd > 0, sd, 1), 0.0)


def prediction_limit(sd: float, n_draws: int, level: float) -> float:
    """The distance from the mean of normal draws within which one more draw lies with probability 1 − level.

    >>> round(prediction_limit(1.0, 8, 0.05), 2)
    2.51
    """
    return student_quantile(1 - level / 2, n_draws - 1) * sd * math.sqrt(1 + 1 / n_draws)


@dataclass(frozen=True)
class Criterion:
    """What decides a claim: the smallest effect of interest, and r̄ and c of its random models.

    A claim of non-inferiority (`allows_loss`) is that the effect is not below −δ; random models do not matter.
    """

    smallest_effect: float
    random_mean: float = 0.0
    random_limit: float = 0.0
    allows_loss: bool = False


def claim_answer(interval: EffectInterval, criterion: Criterion) -> str:
    """The word that follows from an interval.

    yes         lower end > δ, and the estimate exceeds what random models reach
    reversed    upper end < −δ, and the estimate lies below what random models reach
    no          the interval lies between −δ and δ
    unclear     anything else

    Non-inferiority: yes if the lower end > −δ, no if the upper end < −δ.

    >>> claim_answer(EffectInterval(0.2, 0.1, 0.3, 96, 0.1, 0.0, 40, 0.003), Criterion(0.05, 0.0, 0.04))
    'yes'
    >>> claim_answer(EffectInterval(0.2, 0.1, 0.3, 96, 0.1, 0.0, 40, 0.003), Criterion(0.05, 0.0, 0.25))
    'unclear'
    """
    delta, excess = criterion.smallest_effect, interval.estimate - criterion.random_mean
    if criterion.allows_loss:
        return YES if interval.low > -delta else NO if interval.high < -delta else UNCLEAR
    if interval.low > delta and excess > criterion.random_limit:
        return YES
    if interval.high < -delta and excess < -criterion.random_limit:
        return REVERSED
    return NO if -delta < interval.low and interval.high < delta else UNCLEAR


def joint_answer(answers: Sequence[str]) -> str:
    """The answer of a claim in several parts: yes or reversed if all parts are, no if any part is.

    >>> joint_answer(["yes", "no"]), joint_answer(["yes", "unclear"]), joint_answer(["reversed", "reversed"])
    ('no', 'unclear', 'reversed')
    """
    if NO in answers:
        return NO
    return answers[0] if answers[0] in (YES, REVERSED) and len(set(answers)) == 1 else UNCLEAR


def texts_needed(interval: EffectInterval, criterion: Criterion) -> int | None:
    """The number of texts at which the interval would decide the claim, if its estimate stayed. None if more cannot help.

    >>> texts_needed(EffectInterval(0.1, 0.04, 0.16, 96, 0.19, 0.0, 40, 0.003), Criterion(0.05, 0.0, 0.01))
    133
    """
    if interval.n_texts < 2 or math.isnan(interval.estimate):
        return None
    low, high = interval.n_texts, MAX_TEXTS
    if not _would_decide(interval, criterion, high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _would_decide(interval, criterion, middle) else (middle + 1, high)
    return high


def _would_decide(interval: EffectInterval, criterion: Criterion, n_texts: int) -> bool:
    return claim_answer(interval.with_texts(n_texts), criterion) != UNCLEAR
