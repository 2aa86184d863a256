"""Statements: p is what chance gives, a null without spread says nothing, and noise gets any of a family as rarely as promised."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rheoscope.statistics.statement import LEVEL, corrected, from_draws, from_moments, from_units


@given(st.integers(3, 30), st.integers(0, 999))
def test_one_more_draw_is_as_rare_as_students_law_says(draws: int, seed: int) -> None:
    value, *drawn = np.random.default_rng(seed).normal(size=draws + 1)
    t = (value - np.mean(drawn)) / (np.std(drawn, ddof=1) * math.sqrt(1 + 1 / draws))
    one = from_draws("", "a", float(value), drawn)
    assert one.p == pytest.approx(2 * stats.t.sf(abs(t), draws - 1), rel=1e-9)
    assert (one.null, one.spread) == pytest.approx((np.mean(drawn), np.std(drawn, ddof=1)))


def test_exact_moments_are_held_against_the_normal_law() -> None:
    assert from_moments("", "a", 3.0, 1.0, 1.0).p == pytest.approx(2 * stats.norm.sf(2.0))


@given(st.integers(3, 30), st.integers(0, 999))
def test_a_mean_over_units_is_held_against_their_own_spread(units: int, seed: int) -> None:
    seen = np.random.default_rng(seed).normal(size=units)
    assert from_units("", "a", [*seen, float("nan")], 0.5).p == pytest.approx(
        stats.ttest_1samp(seen, 0.5).pvalue, rel=1e-6
    )


def test_a_null_without_spread_says_nothing() -> None:
    silent = [
        from_draws("", "a", 9.0, [1.0, 1.0, 1.0]),
        from_draws("", "a", 9.0, [1.0, 2.0]),
        from_draws("", "a", 9.0, []),
        from_moments("", "a", 9.0, 1.0, 0.0),
        from_units("", "a", [1.0, 1.0, 1.0], 0.0),
        from_units("", "a", [], 0.0),
    ]
    assert all(math.isnan(one.p) and not one.sure for one in corrected(silent, 5))


def test_noise_gets_any_of_a_family_as_rarely_as_promised() -> None:
    draw, family = np.random.default_rng(0), 12
    texts = [
        [from_draws("", "a", float(draw.normal()), draw.normal(size=20)) for _ in range(family)] for _ in range(300)
    ]
    told = np.mean([any(one.sure for one in corrected(text, family)) for text in texts])
    assert 0.015 < told < LEVEL + 0.035


def test_what_is_picked_among_many_pays_for_all() -> None:
    (one,) = corrected([from_moments("", "a", 3.0, 0.0, 1.0, tries=10)], 4)
    assert one.q == pytest.approx(40 * one.p)
