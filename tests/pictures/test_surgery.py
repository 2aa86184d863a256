"""The pictures of what a change costs, in all heads and in each alone."""

import numpy as np
import pytest

from rheoscope.picture.picture import Line
from tests.pictures.cases import cells, drawn, found, lines, titled


def test_costs_stand_at_their_places_with_their_intervals() -> None:
    dataset = found("surgery")
    costs, texts = drawn("surgery").panels
    ends = [mark for mark in costs.marks if isinstance(mark, Line)]
    for at, name in enumerate(dataset.change.values[::-1]):  # the edit on top
        row = dataset.sel(change=name)
        assert list(ends[2 * at].x) == pytest.approx([float(row.cost_low), float(row.cost_high)], nan_ok=True)
        assert list(ends[2 * at + 1].x) == [float(row.cost)]
        assert list(ends[2 * at + 1].y) == [at]
    assert costs.y.names[-1] == "edit"
    assert drawn("surgery").title.endswith("in heads L2.H0, L2.H1, L2.H2, L2.H3")
    assert lines(texts)["after"].y == pytest.approx(dataset.loss_after.values)
    assert lines(texts)["random"].y == pytest.approx(dataset.loss_control.sel(control="size").values)


def test_costs_of_single_heads_are_framed_where_their_interval_leaves_0_out() -> None:
    dataset = found("surgery_per_head")
    table = cells(titled("surgery_per_head", "Cost of the edit, nats"))
    assert np.array_equal(table.values, dataset.head_cost.sel(change="edit").values, equal_nan=True)
    low, high = (dataset[f"head_cost_{end}"].sel(change="edit").values for end in ("low", "high"))
    sure = {(int(a), int(b)) for a, b in np.argwhere((low > 0) | (high < 0))}
    assert table.marked == sure
    over = lines(titled("surgery_per_head", "Over depth"))
    assert np.allclose(over["cloud"].y, dataset.head_cost.sel(change="cloud").sum("head"))
