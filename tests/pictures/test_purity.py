"""Tests of the purity plot with and without a null."""

from rheoscope.report.draw_result import picture_of
from tests.pictures.cases import example_result


def test_z_scores_are_drawn_only_with_a_null() -> None:
    with_null, without_null = example_result("purity"), example_result("purity")[["purity"]]
    assert [panel.title for panel in picture_of(with_null).panels] == ["Distance from the null (z)", "Purity"]
    assert [panel.title for panel in picture_of(without_null).panels] == ["Purity"]
