"""Tests of the default plot of a theory experiment; tests/theory/test_experiments.py checks all figures."""

import pytest

from rheoscope.picture.picture import Line
from rheoscope.report.draw_result import picture_of
from tests.theory.cases import done


def test_default_plot_of_an_experiment_has_the_values_of_its_fields() -> None:
    result = done("rank_collapse")
    lines = {mark.name: mark for panel in picture_of(result).panels for mark in panel.marks if isinstance(mark, Line)}
    assert list(lines["residual"].y) == pytest.approx(result.residual.values)
