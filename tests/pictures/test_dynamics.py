"""The figures of the theory bench; that each experiment has one is seen where it is done (theory/test_experiments.py)."""

import pytest

from rheoscope.picture.picture import Line
from rheoscope.report.draw_result import picture_of
from tests.theory.cases import done


def test_the_picture_of_an_experiment_has_the_numbers_of_its_fields() -> None:
    told = done("rank_collapse")
    drawn = {mark.name: mark for panel in picture_of(told).panels for mark in panel.marks if isinstance(mark, Line)}
    assert list(drawn["residual"].y) == pytest.approx(told.residual.values)
