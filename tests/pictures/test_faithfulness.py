"""Tests of the picture of `faithfulness`."""

import pytest

from tests.pictures.cases import example_picture, example_result, lines


def test_losses_are_drawn_in_increasing_order_of_kept_heads() -> None:
    dataset, loss = example_result("faithfulness"), lines(example_picture("faithfulness").panels[0])
    assert list(loss["gradient of the scores"].x) == [0.0, 50.0, 100.0]
    assert loss["gradient of the scores"].y == pytest.approx(
        dataset.loss.sel(ranking="reversed").mean("text").values[[1, 2, 0]]
    )
    assert loss["random order"].colour == "null"
    assert len(example_picture("faithfulness").panels) == 3
