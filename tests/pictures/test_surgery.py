"""Tests of the pictures of `surgery`, for all heads together and for each head alone."""

import numpy as np
import pytest

from rheoscope.picture.picture import Line
from tests.pictures.cases import cells, example_picture, example_result, lines, panel_with_title


def test_costs_and_losses_are_shown_with_their_intervals() -> None:
    dataset = example_result("surgery")
    costs, texts = example_picture("surgery").panels
    intervals = [mark for mark in costs.marks if isinstance(mark, Line)]
    for row_index, name in enumerate(dataset.change.values[::-1]):  # the edit is on top
        row = dataset.sel(change=name)
        assert list(intervals[2 * row_index].x) == pytest.approx(
            [float(row.cost_low), float(row.cost_high)], nan_ok=True
        )
        assert list(intervals[2 * row_index + 1].x) == [float(row.cost)]
        assert list(intervals[2 * row_index + 1].y) == [row_index]
    assert costs.y.names[-1] == "edit"
    assert example_picture("surgery").title.endswith("in heads L2.H0, L2.H1, L2.H2, L2.H3")
    assert lines(texts)["after"].y == pytest.approx(dataset.loss_after.values)
    assert lines(texts)["random"].y == pytest.approx(dataset.loss_control.sel(control="size").values)


def test_heads_are_framed_if_their_interval_excludes_0() -> None:
    dataset = example_result("surgery_per_head")
    table = cells(panel_with_title("surgery_per_head", "Cost of the edit, nats"))
    assert np.array_equal(table.values, dataset.head_cost.sel(change="edit").values, equal_nan=True)
    low, high = (dataset[f"head_cost_{end}"].sel(change="edit").values for end in ("low", "high"))
    significant = {(int(a), int(b)) for a, b in np.argwhere((low > 0) | (high < 0))}
    assert table.marked == significant
    curves = lines(panel_with_title("surgery_per_head", "Over depth"))
    assert np.allclose(curves["random, same size on the text"].y, dataset.head_cost.sel(change="cloud").sum("head"))
