"""Tests of the picture of `distorted_pairs`."""

from rheoscope.picture.picture import Line
from tests.pictures.cases import example_picture, example_result


def test_separated_pairs_are_drawn_from_their_rank_in_E_to_their_rank_in_the_image() -> None:
    dataset = example_result("distorted_pairs")
    separated_panel, merged_panel = example_picture("distorted_pairs").panels
    row = dataset.sel(kind="separated").isel(pair=0)
    segments = [mark for mark in separated_panel.marks if isinstance(mark, Line) and mark.style == "solid"]
    assert list(segments[-1].x) == [
        float(row.distance_rank_before),
        float(row.distance_rank_after),
    ]  # the most changed pair is on top
    assert separated_panel.y.names[-1].startswith(str(row.earlier_token_text.item()).replace(" ", "·"))
    assert len(merged_panel.y.names) == 4
