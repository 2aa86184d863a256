"""The picture of purity: its distance from the null where there is one, the purities themselves always."""

from rheoscope.report.draw_result import picture_of
from tests.pictures.cases import found


def test_without_a_null_the_purities_stand_alone() -> None:
    beside, alone = found("purity"), found("purity")[["purity"]]
    assert [panel.title for panel in picture_of(beside).panels] == ["Distance from the null (z)", "Purity"]
    assert [panel.title for panel in picture_of(alone).panels] == ["Purity"]
