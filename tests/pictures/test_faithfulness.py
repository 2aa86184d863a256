"""The picture of faithfulness."""

import pytest

from tests.pictures.cases import drawn, found, lines


def test_losses_are_drawn_in_increasing_order_of_kept_heads() -> None:
    dataset, loss = found("faithfulness"), lines(drawn("faithfulness").panels[0])
    assert list(loss["gradient of the scores"].x) == [0.0, 50.0, 100.0]
    assert loss["gradient of the scores"].y == pytest.approx(
        dataset.loss.sel(ranking="reversed").mean("text").values[[1, 2, 0]]
    )
    assert loss["random order"].colour == "null"
    assert len(drawn("faithfulness").panels) == 3
