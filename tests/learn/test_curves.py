"""The statistics of a race: calibrated under the null, with power for planted effects, and equal to scipy's."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from rheoscope.learn.comparison import compare_entrants, target_tokens_of
from rheoscope.learn.contrasts import AHEAD, BEHIND, UNDECIDED, paired_difference, t_test_p_value, verdicts
from rheoscope.learn.curves import Curves, best_curves
from rheoscope.learn.target_tokens import tokens_ratio
from rheoscope.shapes import RheoscopeError
from rheoscope.statistics.intervals import median_interval, student_interval
from rheoscope.statistics.nulls import holm_p_values, sign_test_p_values

SEEDS, REPEATS = 12, 2000
SPREAD = 0.011
"""Standard deviation of the loss over seeds, from a pilot run."""


def curves(name: str, final_losses: torch.Tensor, rate: float = 1e-3, flops: int = 10) -> Curves:
    """Linear curves from a loss of 5 to the final losses."""
    n_evaluations = 5
    fraction = torch.linspace(0, 1, n_evaluations, dtype=torch.float64)
    loss = 5 + fraction * (final_losses.double()[:, None] - 5)
    divergence_steps = tuple(None if math.isfinite(x) else 3 for x in final_losses.tolist())
    steps = tuple(range(0, 10 * n_evaluations, 10))
    tokens = tuple(100 * step for step in steps)
    return Curves(
        name,
        rate,
        tuple(range(len(final_losses))),
        steps,
        tokens,
        tuple(flops * t for t in tokens),
        loss,
        loss,
        divergence_steps,
    )


def losses(generator: torch.Generator, *shape: int, ahead: float = 0.0) -> torch.Tensor:
    """Random losses of seeds. The component shared by pairs is added by the caller."""
    return 3.5 - ahead + SPREAD * torch.randn(*shape, generator=generator, dtype=torch.float64)


# Calibration


def test_the_baseline_against_itself_is_unclear() -> None:
    """At most 5 % false verdicts (plus sampling error), for one entrant and for five that all equal the baseline."""
    generator = torch.Generator().manual_seed(0)
    shared = losses(generator, REPEATS, 1, SEEDS)
    d = losses(generator, REPEATS, 5, SEEDS) + shared - (losses(generator, REPEATS, 1, SEEDS) + shared)
    p = t_test_p_value(d)
    false_rate_single = float((p[:, 0] <= 0.05).double().mean())
    false_rate_any = np.mean([any(verdict != UNDECIDED for verdict in verdicts(row, row > 0)) for row in p[:1000]])
    assert 0.035 < false_rate_single < 0.065
    assert false_rate_any < 0.065


def test_a_planted_advantage_is_detected() -> None:
    """With 12 seeds of sd .011, .015 is detected in 80 % of races and .03 in nearly all."""
    generator = torch.Generator().manual_seed(1)
    for ahead, min_power in ((0.015, 0.8), (0.03, 0.99)):
        d = losses(generator, 500, SEEDS, ahead=ahead) - losses(generator, 500, SEEDS)
        words = [verdicts(p[None], mean[None] > 0)[0] for p, mean in zip(t_test_p_value(d), d.mean(-1), strict=True)]
        assert words.count(AHEAD) >= min_power * len(words)
        assert words.count(BEHIND) == 0


def test_choosing_rates_keeps_the_false_positive_rate() -> None:
    """Three equivalent rates: conservative on the same seeds, exact on halves."""
    generator = torch.Generator().manual_seed(5)
    shared, half = losses(generator, REPEATS, 1, SEEDS), SEEDS // 2

    def best_losses(rate_slice: slice, judged_slice: slice) -> torch.Tensor:
        grid = losses(generator, REPEATS, 3, SEEDS) + shared
        best_index = grid[..., rate_slice].mean(-1).argmin(1)
        return grid[torch.arange(REPEATS), best_index][:, judged_slice]

    for rate_slice, judged_slice, max_false_rate in (
        (slice(None), slice(None), 0.03),
        (slice(half), slice(half, None), 0.065),
    ):
        false_rate = (
            (t_test_p_value(best_losses(rate_slice, judged_slice) - best_losses(rate_slice, judged_slice)) <= 0.05)
            .double()
            .mean()
        )
        assert float(false_rate) < max_false_rate


def test_verdicts_of_a_comparison() -> None:
    generator = torch.Generator().manual_seed(2)
    baseline_losses = losses(generator, SEEDS)
    noise = 0.002 * torch.randn(3, SEEDS, generator=generator, dtype=torch.float64)
    all_curves = [
        curves("untied", baseline_losses), curves("tied", baseline_losses + 0.1 + noise[0]), curves("metric", baseline_losses + noise[1]),
        curves("gated", baseline_losses - 0.05 + noise[2]),
    ]  # fmt: skip
    comparison = compare_entrants(all_curves)
    assert [row.verdict for row in comparison.rows] == ["", BEHIND, UNDECIDED, AHEAD]
    assert [float(row.difference.mean) for row in comparison.rows[1:]] == pytest.approx([0.1, 0, -0.05], abs=0.002)
    assert comparison.rows[3].tokens_ratio.median < 1 < comparison.rows[1].tokens_ratio.median


def test_identical_runs_are_unclear() -> None:
    losses_of_both = losses(torch.Generator().manual_seed(0), SEEDS)
    comparison = compare_entrants([curves("untied", losses_of_both), curves("twin", losses_of_both)])
    assert comparison.rows[1].verdict == UNDECIDED
    assert math.isnan(float(comparison.rows[1].difference.p))  # no p value without spread


def test_rates_chosen_on_half_of_the_seeds_are_judged_on_the_others() -> None:
    lucky = torch.tensor([3.0, 3.0, 4.0, 4.0])
    steady = torch.tensor([3.1, 3.1, 3.1, 3.1])
    baseline_losses = torch.tensor([3.3, 3.31, 3.32, 3.3])
    all_curves = [curves("untied", baseline_losses), curves("tied", lucky, 1e-2), curves("tied", steady, 1e-3)]
    on_all, on_half = compare_entrants(all_curves), compare_entrants(all_curves, halves=True)
    assert (on_all.rows[1].curves.rate, on_half.rows[1].curves.rate) == (1e-3, 1e-2)
    assert (on_half.rate_seeds, on_half.judged_seeds) == ((0, 1), (2, 3))
    assert float(on_half.rows[1].difference.mean) == pytest.approx(4 - 3.31)
    with pytest.raises(RheoscopeError, match="needs at least 4 seeds, got 3"):
        compare_entrants([curves("untied", baseline_losses[:3])], halves=True)


def test_a_rate_at_which_a_seed_diverged_is_not_chosen() -> None:
    nan = float("nan")
    fast, slow = curves("tied", torch.tensor([2.0, nan]), 1e-1), curves("tied", torch.tensor([3.0, 3.0]), 1e-3)
    assert best_curves([fast, slow]).rate == 1e-3
    assert best_curves([fast, curves("tied", torch.tensor([nan, nan]), 1.0)]).rate == 1e-1


def test_a_comparison_needs_the_baseline() -> None:
    with pytest.raises(RheoscopeError, match="compared with 'untied', which is not among tied"):
        compare_entrants([curves("tied", torch.tensor([3.0, 3.0]))])


# Differences


def test_paired_differences_equal_those_of_scipy() -> None:
    generator = torch.Generator().manual_seed(3)
    entrant_losses, baseline_losses = losses(generator, SEEDS), losses(generator, SEEDS)
    difference, scipy_result = (
        paired_difference(entrant_losses, baseline_losses),
        stats.ttest_rel(entrant_losses.numpy(), baseline_losses.numpy()),
    )
    assert float(difference.p) == pytest.approx(scipy_result.pvalue, rel=1e-9)
    interval = scipy_result.confidence_interval()
    assert (float(difference.low), float(difference.high)) == pytest.approx((interval.low, interval.high), rel=1e-6)
    assert difference.bootstrap_low < difference.mean < difference.bootstrap_high
    assert abs(float(difference.bootstrap_high - difference.high)) < SPREAD


def test_a_diverged_run_counts_as_behind() -> None:
    entrant_losses, baseline_losses = torch.full((SEEDS,), 3.0).double(), torch.linspace(3.0, 3.2, SEEDS).double() + 0.1
    assert float(paired_difference(entrant_losses, baseline_losses).p) < 0.05
    assert not bool(paired_difference(entrant_losses, baseline_losses).is_behind)
    entrant_losses[:11] = torch.nan  # the only remaining run is ahead
    difference = paired_difference(entrant_losses, baseline_losses)
    assert float(difference.mean) < 0
    assert bool(difference.is_behind)
    assert float(difference.p) == pytest.approx(stats.binomtest(11, 12).pvalue)


def test_a_single_seed_is_unclear() -> None:
    comparison = compare_entrants([curves("untied", torch.tensor([3.0])), curves("tied", torch.tensor([2.0]))])
    assert comparison.rows[1].verdict == UNDECIDED


# Tokens to a target


def test_tokens_to_a_target_are_interpolated_linearly() -> None:
    tokens = target_tokens_of(4.0, curves("untied", torch.tensor([3.0, 1.0, 4.5, float("nan")])))
    assert tokens.tolist() == pytest.approx([2000, 1000, math.inf, math.inf])


def test_a_run_that_starts_at_the_target_needs_no_tokens() -> None:
    assert target_tokens_of(5.0, curves("untied", torch.tensor([3.0]))).tolist() == [0.0]


def test_runs_that_never_reach_the_target_are_censored() -> None:
    never = math.inf
    entrant = torch.tensor([50.0, 60.0, 70.0, 80.0, never, never], dtype=torch.float64)
    ratio = tokens_ratio(entrant, torch.full((6,), 80.0, dtype=torch.float64), 100.0)
    assert ratio.median == pytest.approx((70 + 80) / 2 / 80)
    assert ratio.low == pytest.approx((50 + 3.57) / 80, abs=1e-3)
    assert ratio.high == never
    assert tokens_ratio(entrant[[3, 4, 5]], torch.tensor([80.0, 80.0, 80.0]), 100.0).median == never
    baseline_never = torch.tensor([80.0, never, never, never, 80.0, never], dtype=torch.float64)
    ratio = tokens_ratio(entrant, baseline_never, 100.0)
    assert math.isnan(ratio.median)  # the pairs (60, never), (70, never), (80, never) and (never, never) leave it open
    assert (ratio.low, ratio.high) == (0.0, never)
    assert math.isnan(tokens_ratio(torch.zeros(2), torch.zeros(2), 100.0).median)


# Tests and intervals


def test_holm_correction_equals_hand_computed_values() -> None:
    p = torch.tensor([0.04, 0.01, float("nan"), 0.03, 0.02])
    assert holm_p_values(p)[[0, 1, 3, 4]].tolist() == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm_p_values(p)[2].isnan()
    assert len(holm_p_values(torch.empty(0))) == 0


@pytest.mark.parametrize(("behind", "ahead"), [(0, 6), (3, 9), (11, 1), (5, 5), (0, 0)])
def test_the_sign_test_equals_that_of_scipy(behind: int, ahead: int) -> None:
    expected = stats.binomtest(behind, behind + ahead).pvalue if behind + ahead else 1.0
    assert float(sign_test_p_values(torch.tensor(behind), torch.tensor(ahead))) == pytest.approx(expected)


def test_intervals_have_their_nominal_coverage() -> None:
    x = torch.randn(REPEATS, SEEDS, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    for interval, min_coverage, max_coverage in (
        (student_interval(x), 0.935, 0.965),
        (median_interval(x), 0.935, 0.965),
    ):
        coverage = float(((interval[0] < 0) & (interval[1] > 0)).double().mean())
        assert min_coverage < coverage < max_coverage
    assert all(end.isnan() for end in median_interval(torch.arange(5.0)))
    assert all(end.isnan() for end in student_interval(torch.ones(1)))
