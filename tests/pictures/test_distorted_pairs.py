"""The picture of pairs that a head tears apart and glues together."""

from rheoscope.picture.picture import Line
from tests.pictures.cases import drawn, found


def test_torn_pairs_go_from_their_place_in_e_to_that_in_the_image() -> None:
    dataset = found("distorted_pairs")
    torn, glued = drawn("distorted_pairs").panels
    row = dataset.sel(kind="torn").isel(pair=0)
    ways = [mark for mark in torn.marks if isinstance(mark, Line) and mark.style == "solid"]
    assert list(ways[-1].x) == [
        float(row.distance_rank_before),
        float(row.distance_rank_after),
    ]  # the most changed on top
    assert torn.y.names[-1].startswith(str(row.earlier_token_text.item()).replace(" ", "·"))
    assert len(glued.y.names) == 4
