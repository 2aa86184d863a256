"""Every numeric setting of every analysis: bounds are declared, hold for the default, and refuse everything else in one line."""

import math
from collections.abc import Sequence
from typing import Any, get_args, get_origin

import pytest

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.report.setting_options import typeable_options
from rheoscope.running.argument_checks import strip_none
from rheoscope.shapes import RheoscopeError
from rheoscope.space.settings import Bounds, Choices, check_setting, plain_type, rules

SETTINGS = [
    (analysis, name)
    for analysis in ANALYSIS_MODULES
    for name, parameter in analysis_by_name(analysis).settings.items()
    if any(isinstance(rule, Bounds) for rule in rules(parameter.annotation))
]


def annotation(analysis: str, name: str) -> Any:
    return analysis_by_name(analysis).settings[name].annotation


def is_whole(hint: Any) -> bool:
    """Whether a setting takes whole numbers only."""
    types = {hint}
    while any(get_args(part) for part in types):
        types = {inner for part in types for inner in (get_args(part) or (part,))}
    return float not in types


def test_there_are_about_a_hundred_numeric_settings() -> None:
    assert len(SETTINGS) >= 95


@pytest.mark.parametrize(("analysis", "name"), SETTINGS)
def test_values_outside_the_bounds_are_refused_in_one_line_that_names_them(analysis: str, name: str) -> None:
    hint = annotation(analysis, name)
    plain = plain_type(hint)
    is_list = get_origin(strip_none(plain)[1]) is Sequence
    for bounds in (rule for rule in rules(hint) if isinstance(rule, Bounds)):
        assert math.isfinite(bounds.low)
        assert bounds.low < bounds.high < math.inf
        wrong_values = [bounds.low - 1, bounds.high + 1, math.nan, math.inf, -math.inf]
        wrong_values += [bounds.low + 0.5] if is_whole(plain) else []
        for value in wrong_values:
            with pytest.raises(RheoscopeError, match=f"{name} must .*{bounds.low:,} and {bounds.high:,}") as refusal:
                analysis_by_name(analysis).check_settings({name: [value] if is_list else value})
            assert "\n" not in str(refusal.value)
            assert f"; type {name}=" in str(refusal.value)
        advised = bounds.low if bounds.advised is None else bounds.advised
        for value in (bounds.low, bounds.high, advised):
            check_setting(name, hint, [value] if is_list else value)
        if is_list:
            with pytest.raises(RheoscopeError, match=f"{name} takes a list of numbers"):
                check_setting(name, hint, bounds.low)


@pytest.mark.parametrize("analysis", ANALYSIS_MODULES)
def test_every_default_is_allowed_and_typed_fractions_reach_the_check(analysis: str) -> None:
    spec = analysis_by_name(analysis)
    options = typeable_options(spec)
    for name, parameter in spec.settings.items():
        if list(rules(parameter.annotation)) and parameter.default is not None:
            check_setting(name, parameter.annotation, parameter.default)
        option = options.get(name)
        is_number_list = option is not None and get_origin(strip_none(plain_type(parameter.annotation))[1]) is Sequence
        if is_number_list and (analysis, name) in SETTINGS and name not in ("targets", "foils", "heads"):
            assert option is not None
            with pytest.raises(RheoscopeError, match=f"{name} must"):
                check_setting(name, parameter.annotation, option.parse(name, "nan", None))  # type: ignore[arg-type]


def test_choices_are_checked_too() -> None:
    hints = {
        name: parameter.annotation
        for analysis in ANALYSIS_MODULES
        for name, parameter in analysis_by_name(analysis).settings.items()
        if any(isinstance(rule, Choices) for rule in rules(parameter.annotation))
    }
    assert {"space", "grain"} <= set(hints)
    for name, hint in hints.items():
        with pytest.raises(RheoscopeError, match=f"{name} must be one of"):
            check_setting(name, hint, "no such name")
