"""The picture of which ranking finds the heads that matter."""

import pytest

from tests.pictures.cases import drawn, found, lines


def test_curves_run_from_left_to_right() -> None:
    dataset, loss = found("faithfulness"), lines(drawn("faithfulness").panels[0])
    assert list(loss["reversed"].x) == [0.0, 50.0, 100.0]
    assert loss["reversed"].y == pytest.approx(dataset.loss.sel(ranking="reversed").mean("text").values[[1, 2, 0]])
    assert loss["random"].colour == "null"
    assert len(drawn("faithfulness").panels) == 3
