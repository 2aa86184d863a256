"""What a race shows is calibrated: nothing is found where nothing is, what is planted is found, by the obvious formulas."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from rheoscope.learn.curves import (
    AHEAD,
    BEHIND,
    UNDECIDED,
    Curves,
    best_curves,
    compare_entrants,
    median_and_interval,
    paired_difference,
    t_test_p_value,
    tokens_ratio,
    tokens_to_target,
    verdicts,
)
from rheoscope.shapes import RheoscopeError
from rheoscope.statistics.nulls import holm_p_values, median_interval, sign_test_p_values, student_interval

SEEDS, REPEATS = 12, 2000
SPREAD = 0.011
"""Of the loss over seeds, as a pilot saw it."""


def curves(name: str, last: torch.Tensor, rate: float = 1e-3, flops: int = 10) -> Curves:
    """Straight lines from a loss of 5 to the last one."""
    marks = 5
    way = torch.linspace(0, 1, marks, dtype=torch.float64)
    loss = 5 + way * (last.double()[:, None] - 5)
    lost = tuple(None if math.isfinite(x) else 3 for x in last.tolist())
    steps = tuple(range(0, 10 * marks, 10))
    tokens = tuple(100 * step for step in steps)
    return Curves(
        name, rate, tuple(range(len(last))), steps, tokens, tuple(flops * t for t in tokens), loss, loss, lost
    )


def losses(draw: torch.Generator, *shape: int, ahead: float = 0.0) -> torch.Tensor:
    """Losses of seeds: a part that is the seed's own, which pairs share, is added by whoever pairs."""
    return 3.5 - ahead + SPREAD * torch.randn(*shape, generator=draw, dtype=torch.float64)


# Calibration


def test_the_baseline_against_itself_cannot_be_told_apart() -> None:
    """Alone, and among five entrants that are all the baseline: a false word in at most 5 % of repeats (and noise of the test)."""
    draw = torch.Generator().manual_seed(0)
    shared = losses(draw, REPEATS, 1, SEEDS)
    d = losses(draw, REPEATS, 5, SEEDS) + shared - (losses(draw, REPEATS, 1, SEEDS) + shared)
    p = t_test_p_value(d)
    false_alone = float((p[:, 0] <= 0.05).double().mean())
    false_among = np.mean([any(word != UNDECIDED for word in verdicts(row, row > 0)) for row in p[:1000]])
    assert 0.035 < false_alone < 0.065
    assert false_among < 0.065


def test_a_planted_advantage_is_found() -> None:
    """.013 at 12 seeds of sd .011 each is what a race of this size can tell, nine times of ten; .03 always."""
    draw = torch.Generator().manual_seed(1)
    for ahead, least in ((0.015, 0.8), (0.03, 0.99)):
        d = losses(draw, 500, SEEDS, ahead=ahead) - losses(draw, 500, SEEDS)
        found = [verdicts(p[None], mean[None] > 0)[0] for p, mean in zip(t_test_p_value(d), d.mean(-1), strict=True)]
        assert found.count(AHEAD) >= least * len(found)
        assert found.count(BEHIND) == 0


def test_choosing_rates_finds_nothing_where_nothing_is() -> None:
    """From three rates that are alike: chosen and judged on the same seeds it is careful, on halves it is exact."""
    draw = torch.Generator().manual_seed(5)
    shared, half = losses(draw, REPEATS, 1, SEEDS), SEEDS // 2

    def chosen(on: slice, judged: slice) -> torch.Tensor:
        grid = losses(draw, REPEATS, 3, SEEDS) + shared
        at = grid[..., on].mean(-1).argmin(1)
        return grid[torch.arange(REPEATS), at][:, judged]

    for on, judged, most in ((slice(None), slice(None), 0.03), (slice(half), slice(half, None), 0.065)):
        false = (t_test_p_value(chosen(on, judged) - chosen(on, judged)) <= 0.05).double().mean()
        assert float(false) < most


def test_words_of_a_whole_comparison() -> None:
    draw = torch.Generator().manual_seed(2)
    base = losses(draw, SEEDS)
    noise = 0.002 * torch.randn(3, SEEDS, generator=draw, dtype=torch.float64)
    raced = [
        curves("untied", base), curves("tied", base + 0.1 + noise[0]), curves("metric", base + noise[1]),
        curves("gated", base - 0.05 + noise[2]),
    ]  # fmt: skip
    found = compare_entrants(raced)
    assert [row.verdict for row in found.rows] == ["", BEHIND, UNDECIDED, AHEAD]
    assert [float(row.difference.mean) for row in found.rows[1:]] == pytest.approx([0.1, 0, -0.05], abs=0.002)
    assert median_and_interval(found.rows[3].tokens_ratio)[0] < 1 < median_and_interval(found.rows[1].tokens_ratio)[0]


def test_the_very_same_runs_cannot_be_told_apart() -> None:
    same = losses(torch.Generator().manual_seed(0), SEEDS)
    found = compare_entrants([curves("untied", same), curves("twin", same)])
    assert found.rows[1].verdict == UNDECIDED
    assert math.isnan(float(found.rows[1].difference.p))  # no spread says nothing


def test_rates_chosen_on_half_of_the_seeds_are_judged_on_the_others() -> None:
    lucky = torch.tensor([3.0, 3.0, 4.0, 4.0])
    steady = torch.tensor([3.1, 3.1, 3.1, 3.1])
    base = torch.tensor([3.3, 3.31, 3.32, 3.3])
    raced = [curves("untied", base), curves("tied", lucky, 1e-2), curves("tied", steady, 1e-3)]
    on_all, on_half = compare_entrants(raced), compare_entrants(raced, halves=True)
    assert (on_all.rows[1].curves.rate, on_half.rows[1].curves.rate) == (1e-3, 1e-2)
    assert (on_half.rate_seeds, on_half.judged_seeds) == ((0, 1), (2, 3))
    assert float(on_half.rows[1].difference.mean) == pytest.approx(4 - 3.31)
    with pytest.raises(RheoscopeError, match="half of 3 seeds"):
        compare_entrants([curves("untied", base[:3])], halves=True)


def test_a_rate_at_which_a_seed_diverged_is_not_chosen() -> None:
    nan = float("nan")
    fast, slow = curves("tied", torch.tensor([2.0, nan]), 1e-1), curves("tied", torch.tensor([3.0, 3.0]), 1e-3)
    assert best_curves([fast, slow]).rate == 1e-3
    assert best_curves([fast, curves("tied", torch.tensor([nan, nan]), 1.0)]).rate == 1e-1


def test_there_is_no_race_without_a_baseline() -> None:
    with pytest.raises(RheoscopeError, match="'untied', which is not there"):
        compare_entrants([curves("tied", torch.tensor([3.0, 3.0]))])


# Differences


def test_paired_differences_are_scipys() -> None:
    draw = torch.Generator().manual_seed(3)
    own, other = losses(draw, SEEDS), losses(draw, SEEDS)
    found, theirs = paired_difference(own, other), stats.ttest_rel(own.numpy(), other.numpy())
    assert float(found.p) == pytest.approx(theirs.pvalue, rel=1e-9)
    ends = theirs.confidence_interval()
    assert (float(found.low), float(found.high)) == pytest.approx((ends.low, ends.high), rel=1e-6)
    assert found.bootstrap_low < found.mean < found.bootstrap_high
    assert abs(float(found.bootstrap_high - found.high)) < SPREAD


def test_what_diverged_has_lost() -> None:
    own, other = torch.full((SEEDS,), 3.0).double(), torch.linspace(3.0, 3.2, SEEDS).double() + 0.1
    assert float(paired_difference(own, other).p) < 0.05
    assert not bool(paired_difference(own, other).is_behind)
    own[:11] = torch.nan  # the one that is left is ahead
    found = paired_difference(own, other)
    assert float(found.mean) < 0
    assert bool(found.is_behind)
    assert float(found.p) == pytest.approx(stats.binomtest(11, 12).pvalue)


def test_one_seed_says_nothing() -> None:
    found = compare_entrants([curves("untied", torch.tensor([3.0])), curves("tied", torch.tensor([2.0]))])
    assert found.rows[1].verdict == UNDECIDED


# Tokens to a target


def test_tokens_to_a_target_by_a_straight_line() -> None:
    at = tokens_to_target(4.0, curves("untied", torch.tensor([3.0, 1.0, 4.5, float("nan")])))
    assert at.tolist() == pytest.approx([2000, 1000, math.inf, math.inf])


def test_a_start_that_is_at_the_target_takes_no_tokens() -> None:
    assert tokens_to_target(5.0, curves("untied", torch.tensor([3.0]))).tolist() == [0.0]


def test_medians_count_what_never_arrived() -> None:
    x = torch.tensor([0.5, 0.6, 0.7, 0.8, math.inf, math.inf, math.nan], dtype=torch.float64)
    assert median_and_interval(x) == pytest.approx((0.75, 0.5, math.inf))
    assert median_and_interval(torch.tensor([math.inf, math.inf, 1.0]))[0] == math.inf
    assert tokens_ratio(torch.tensor([2.0, math.inf, 2.0]), torch.tensor([4.0, 4.0, math.inf])).isnan().tolist() == [
        False,
        False,
        True,
    ]


# Chance


def test_holm_is_by_hand() -> None:
    p = torch.tensor([0.04, 0.01, float("nan"), 0.03, 0.02])
    assert holm_p_values(p)[[0, 1, 3, 4]].tolist() == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm_p_values(p)[2].isnan()
    assert len(holm_p_values(torch.empty(0))) == 0


@pytest.mark.parametrize(("behind", "ahead"), [(0, 6), (3, 9), (11, 1), (5, 5), (0, 0)])
def test_the_sign_test_is_scipys(behind: int, ahead: int) -> None:
    want = stats.binomtest(behind, behind + ahead).pvalue if behind + ahead else 1.0
    assert float(sign_test_p_values(torch.tensor(behind), torch.tensor(ahead))) == pytest.approx(want)


def test_intervals_cover_what_they_say() -> None:
    x = torch.randn(REPEATS, SEEDS, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    for ends, least, most in ((student_interval(x), 0.935, 0.965), (median_interval(x), 0.95, 0.975)):
        covered = float(((ends[0] < 0) & (ends[1] > 0)).double().mean())
        assert least < covered < most
    assert all(end.isnan() for end in median_interval(torch.arange(5.0)))
    assert all(end.isnan() for end in student_interval(torch.ones(1)))
