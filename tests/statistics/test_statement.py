"""Statements: p-values are calibrated, a null without spread has none, and the family-wise error rate holds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rheoscope.statistics.statement import SIGNIFICANCE_LEVEL, correct_for_family, from_draws, from_moments, from_units


@settings(max_examples=30)
@given(st.integers(3, 30), st.integers(0, 999))
def test_p_value_of_draws_is_the_larger_one_of_students_t_and_a_gamma_law(draws: int, seed: int) -> None:
    value, *null_draws = np.random.default_rng(seed).normal(size=draws + 1)
    t = (value - np.mean(null_draws)) / (np.std(null_draws, ddof=1) * math.sqrt(1 + 1 / draws))
    statement = from_draws("", "a", float(value), null_draws)
    skewness = (1 + 10 / math.sqrt(draws)) * np.sign(t) * np.mean(
        ((null_draws - np.mean(null_draws)) / np.std(null_draws, ddof=1)) ** 3
    ) + math.sqrt(6 / draws)
    gamma_p = 2 * stats.pearson3.sf(abs(t), skewness) if skewness > 1e-3 else 0
    assert statement.p == pytest.approx(max(2 * stats.t.sf(abs(t), draws - 1), min(gamma_p, 1)), rel=1e-5)
    assert (statement.null, statement.spread) == pytest.approx((np.mean(null_draws), np.std(null_draws, ddof=1)))


def test_p_value_of_exact_moments_equals_the_normal_law() -> None:
    assert from_moments("", "a", 3.0, 1.0, 1.0).p == pytest.approx(2 * stats.norm.sf(2.0))


@settings(max_examples=30)
@given(st.integers(3, 30), st.integers(0, 999))
def test_p_value_of_units_equals_a_t_test(units: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=units)
    assert from_units("", "a", [*values, float("nan")], 0.5).p == pytest.approx(
        stats.ttest_1samp(values, 0.5).pvalue, rel=1e-6
    )


def test_null_without_spread_has_no_p_value() -> None:
    statements = [
        from_draws("", "a", 9.0, [1.0, 1.0, 1.0]),
        from_draws("", "a", 9.0, [1.0, 2.0]),
        from_draws("", "a", 9.0, []),
        from_moments("", "a", 9.0, 1.0, 0.0),
        from_units("", "a", [1.0, 1.0, 1.0], 0.0),
        from_units("", "a", [], 0.0),
    ]
    assert all(
        math.isnan(statement.p) and not statement.is_significant for statement in correct_for_family(statements, 5)
    )


def test_family_wise_error_rate_holds_on_noise() -> None:
    draw, family = np.random.default_rng(0), 6
    texts = [
        [from_draws("", "a", float(draw.normal()), draw.normal(size=20)) for _ in range(family)] for _ in range(150)
    ]
    error_rate = np.mean(
        [any(statement.is_significant for statement in correct_for_family(text, family)) for text in texts]
    )
    assert 0.015 < error_rate < SIGNIFICANCE_LEVEL + 0.035


def test_best_of_several_tries_is_corrected() -> None:
    (statement,) = correct_for_family([from_moments("", "a", 3.0, 0.0, 1.0, tries=10)], 4)
    assert statement.q == pytest.approx(40 * statement.p)
