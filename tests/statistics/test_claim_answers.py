"""Answers to claims: the interval, what random models reach, and the words, on simulated cards."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rheoscope.statistics.claim_answers import (
    CARD_LEVEL,
    Criterion,
    EffectInterval,
    Evidence,
    claim_answer,
    effect_interval,
    joint_answer,
    leave_one_out_scores,
    prediction_limit,
    random_limits,
    shared_quantile,
    texts_needed,
)

N_INTERVALS, N_TEXTS, N_DRAWS = 16, 96, 40
DELTA, TEXT_SD, DRAW_SD = 0.05, 0.1, 0.02


def simulated_card(effect: float, seed: int, draw_sd: float = DRAW_SD) -> list[str]:
    """The answers of a card whose model differs from random models by `effect` in every claim.

    The model itself is one more draw: it differs from the reference on all texts alike, even if the effect is 0.
    """
    numbers = np.random.default_rng(seed)
    evidence = []
    for _ in range(N_INTERVALS):
        models = numbers.normal(0, draw_sd, N_DRAWS + 1)
        text_effects = numbers.normal(0, TEXT_SD, N_TEXTS)
        own_shift = models[0] if effect == 0 else 0.0
        effects = torch.from_numpy(effect + own_shift + text_effects - models[1:].mean())
        evidence.append(Evidence(effects, torch.from_numpy(models[1:]), is_reference=True))
    limits = random_limits(evidence)
    level = CARD_LEVEL / N_INTERVALS
    return [
        claim_answer(effect_interval(item, level), Criterion(DELTA, item.random_mean, limit))
        for item, limit in zip(evidence, limits, strict=True)
    ]


def test_random_cards_have_a_yes_or_reversed_in_at_most_5_percent() -> None:
    """A random model differs from its reference on all texts alike, sometimes by more than δ."""
    cards = [simulated_card(0.0, seed, draw_sd=0.05) for seed in range(200)]
    assert sum("yes" in card or "reversed" in card for card in cards) <= 16


def test_effects_of_twice_the_smallest_are_found_and_effects_of_0_are_denied() -> None:
    confirmed = np.mean([answer == "yes" for seed in range(20) for answer in simulated_card(2 * DELTA, seed)])
    denied = np.mean([answer == "no" for seed in range(20) for answer in simulated_card(0.0, seed, draw_sd=0.005)])
    reversed_share = np.mean([answer == "reversed" for seed in range(20) for answer in simulated_card(-0.1, seed)])
    assert confirmed >= 0.9
    assert denied >= 0.8
    assert reversed_share >= 0.9


def test_intervals_of_a_card_cover_together() -> None:
    """The errors of texts and of shared draws are both in the interval. Draws are few, so that their error matters."""
    numbers, misses, n_cards, n_intervals, n_draws = np.random.default_rng(1), 0, 400, 8, 12
    for _ in range(n_cards):
        texts = torch.from_numpy(numbers.normal(0, 0.1, (n_intervals, 20)))
        draws = torch.from_numpy(numbers.normal(0, 0.1, (n_intervals, n_draws)))
        intervals = [
            effect_interval(Evidence(row - draw.mean(), draw, is_reference=True), CARD_LEVEL / n_intervals)
            for row, draw in zip(texts, draws, strict=True)
        ]
        misses += any(not interval.low <= 0 <= interval.high for interval in intervals)
    assert misses / n_cards <= 0.07


def test_the_interval_is_that_of_welch_and_satterthwaite() -> None:
    numbers = np.random.default_rng(0)
    effects, draws = numbers.normal(0.3, 1.0, 9), numbers.normal(0.0, 2.0, 12)
    a, b = effects.var(ddof=1) / 9, draws.var(ddof=1) / 12
    degrees = (a + b) ** 2 / (a**2 / 8 + b**2 / 11)
    expected = stats.t.ppf(1 - 0.01 / 2, degrees) * math.sqrt(a + b)
    interval = effect_interval(Evidence(torch.from_numpy(effects), torch.from_numpy(draws), is_reference=True), 0.01)
    assert math.isclose((interval.high - interval.low) / 2, expected, rel_tol=1e-9)
    assert math.isclose(interval.estimate, effects.mean())


def test_a_statistic_of_the_weights_alone_has_only_the_error_of_its_draws() -> None:
    draws = torch.linspace(-1, 1, 41).double()
    interval = effect_interval(Evidence(torch.tensor([0.4]), draws, is_reference=True), 0.05)
    expected = stats.t.ppf(0.975, 40) * float(draws.std()) / math.sqrt(41)
    assert math.isclose((interval.high - interval.low) / 2, expected, rel_tol=1e-9)


@pytest.mark.parametrize("is_skewed", [False, True])
def test_intervals_of_few_texts_stay_in_the_range_of_shares_and_keep_their_coverage(is_skewed: bool) -> None:
    """Shares of ten tokens minus a chance of .1, in 2 to 4 texts. The true effect is in the range, so no interval loses it."""
    numbers, share, n_samples, outside = np.random.default_rng(2), 0.6, 150, 0
    covered = {"bounded": 0, "unbounded": 0}
    for sample in range(n_samples):
        shares = numbers.binomial(10, numbers.beta(4 * share, 4 * (1 - share), 2 + sample % 3)) / 10
        chance, draws = numbers.normal(0.1, 0.02, len(shares)), torch.zeros(40)
        unbounded = Evidence(torch.from_numpy(shares - chance), draws, False, is_skewed)
        intervals = {
            "unbounded": effect_interval(unbounded, 0.05),
            "bounded": effect_interval(replace(unbounded, bounds=(-1.0, 1.0)), 0.05),
        }
        for name, interval in intervals.items():
            covered[name] += interval.low <= share - 0.1 <= interval.high
        outside += not -1 <= intervals["unbounded"].low <= intervals["unbounded"].high <= 1
        low, high = intervals["bounded"].low, intervals["bounded"].high
        assert -1 <= low <= high <= 1
        criterion = Criterion(0.05, 0.0, 0.02)
        assert claim_answer(intervals["bounded"], criterion) == claim_answer(intervals["unbounded"], criterion)
        assert texts_needed(intervals["bounded"], criterion) == texts_needed(intervals["unbounded"], criterion)
    assert outside > n_samples / 4
    assert covered["bounded"] == covered["unbounded"]


def test_texts_without_a_value_do_not_count() -> None:
    draws = torch.zeros(40)
    with_gaps = effect_interval(Evidence(torch.tensor([1.0, torch.nan, 2.0, 3.0, 4.0]), draws, False), 0.05)
    without = effect_interval(Evidence(torch.tensor([1.0, 2.0, 3.0, 4.0]), draws, False), 0.05)
    assert with_gaps == without


def test_leave_one_out_scores_equal_a_loop() -> None:
    draws = torch.randn(3, 11, generator=torch.Generator().manual_seed(0)).double()
    scores = leave_one_out_scores(draws)
    for row in range(3):
        for draw in range(11):
            others = torch.cat([draws[row, :draw], draws[row, draw + 1 :]])
            expected = float((draws[row, draw] - others.mean()) / others.std())
            assert math.isclose(float(scores[row, draw]), expected, rel_tol=1e-9)


def test_the_shared_limit_is_an_order_statistic_of_the_largest_scores() -> None:
    draws = torch.randn(5, 40, generator=torch.Generator().manual_seed(0)).double()
    largest = leave_one_out_scores(draws).abs().amax(0).sort().values
    assert shared_quantile(draws) == float(largest[math.ceil(0.95 * 41) - 1])


def test_few_untrained_models_have_the_prediction_limit() -> None:
    evidence = [Evidence(torch.randn(9), torch.linspace(-1, 1, 8), is_reference=False) for _ in range(3)]
    expected = stats.t.ppf(1 - 0.05 / 6, 7) * float(torch.linspace(-1, 1, 8).double().std()) * math.sqrt(1 + 1 / 8)
    assert random_limits(evidence) == pytest.approx([expected] * 3)
    assert prediction_limit(0.0, 8, 0.05) == 0


ends = st.floats(-1, 1, allow_nan=False)


@given(ends, ends, st.floats(0.01, 0.5), st.floats(0, 0.5))
def test_the_words_follow_from_the_numbers_alone(a: float, b: float, delta: float, limit: float) -> None:
    low, high = min(a, b), max(a, b)
    interval = EffectInterval((low + high) / 2, low, high, 96, 0.1, 0.0, 40, 0.003)
    answer = claim_answer(interval, Criterion(delta, 0.0, limit))
    opposite = EffectInterval(-interval.estimate, -high, -low, 96, 0.1, 0.0, 40, 0.003)
    mirrored = {"yes": "reversed", "reversed": "yes", "no": "no", "unclear": "unclear"}
    assert claim_answer(opposite, Criterion(delta, 0.0, limit)) == mirrored[answer]
    assert (answer == "no") == (-delta < low and high < delta)
    assert (answer == "yes") == (low > delta and interval.estimate > limit)
    assert claim_answer(interval, Criterion(delta, allows_loss=True)) == (
        "yes" if low > -delta else "no" if high < -delta else "unclear"
    )


def test_a_claim_in_two_parts_needs_both() -> None:
    assert joint_answer(["yes", "yes"]) == "yes"
    assert joint_answer(["yes", "reversed"]) == "unclear"
    assert joint_answer(["unclear", "no"]) == "no"


def test_the_number_of_texts_that_is_needed_decides_and_half_of_it_does_not() -> None:
    draws, effects = torch.linspace(-0.01, 0.01, 40), torch.tensor([0.1 + 0.2 * (-1) ** n for n in range(20)])
    criterion = Criterion(DELTA, 0.0, 0.02)

    def answer(n_texts: int) -> str:
        more_effects = effects.repeat(math.ceil(n_texts / 20))[:n_texts]
        return claim_answer(effect_interval(Evidence(more_effects, draws, is_reference=True), 0.003), criterion)

    needed = texts_needed(effect_interval(Evidence(effects, draws, is_reference=True), 0.003), criterion)
    assert needed is not None
    assert answer(20) == answer(needed // 40 * 20) == "unclear"
    assert answer(math.ceil(1.1 * needed / 20) * 20) == "yes"


def test_more_texts_cannot_help_if_random_models_reach_the_effect() -> None:
    interval = EffectInterval(0.1, 0.08, 0.12, 96, 0.1, 0.0, 40, 0.003)
    assert claim_answer(interval, Criterion(DELTA, 0.0, 0.2)) == "unclear"
    assert texts_needed(interval, Criterion(DELTA, 0.0, 0.2)) is None


def test_skewed_effects_have_the_quantiles_of_resampled_texts() -> None:
    """A slow twin: resample, studentise, sort. The interval reaches further towards the long tail."""
    effects = torch.from_numpy(np.random.default_rng(3).lognormal(size=40))
    interval = effect_interval(Evidence(effects, torch.zeros(40), False, is_skewed=True), 0.05)
    numbers, t = np.random.default_rng(1), []
    for _ in range(4000):
        sample = numbers.choice(effects.numpy(), 40)
        t.append((sample.mean() - effects.numpy().mean()) / (sample.std(ddof=1) / math.sqrt(40)))
    error = float(effects.std()) / math.sqrt(40)
    expected = [interval.estimate - error * np.quantile(t, p) for p in (0.975, 0.025)]
    assert [interval.low, interval.high] == pytest.approx(expected, rel=0.05)
    assert interval.high - interval.estimate > 1.3 * (interval.estimate - interval.low)
    symmetric = effect_interval(Evidence(effects, torch.zeros(40), False), 0.05)
    assert symmetric.high - symmetric.estimate == pytest.approx(symmetric.estimate - symmetric.low)
