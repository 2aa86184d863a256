"""Pictures of what is changed and of what the loss wants: each draws every number it is given, by all three hands."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.report.picture import Cells, Line, Panel, Picture
from tests.pretrained.cases import once
from tests.report.cases import by_three_hands

TEXT = "The keys to the cabinet are on the table, and the man who has them went out. " * 3


@once
def found() -> dict[str, Any]:
    model = rs.load()
    trace = model.trace("The keys to the cabinet are")
    return {
        "surgery": rs.surgery(model, rs.pieces(model, TEXT, 12), heads=2, M="symmetric"),
        "reversed_attention": rs.reversed_attention(model, trace, " on"),
        "patching": rs.attention_patching(model, trace, " on", (0.1, -0.1, 0.0)),
        "faithfulness": rs.faithfulness(
            model, ["The keys to the cabinet are"], [" on"], [" of"], kept=(1.0, 0.0, 0.5), draws=1
        ),
    }


def picture(name: str) -> Picture:
    return getattr(import_module(f"rheoscope.report.plot.{name}"), f"picture_{name}")(found()[name])


def lines(panel: Panel) -> dict[str, Line]:
    return {mark.name: mark for mark in panel.marks if isinstance(mark, Line)}


@pytest.mark.parametrize("name", ["surgery", "reversed_attention", "patching", "faithfulness"])
def test_three_hands_draw_every_panel(name: str) -> None:
    by_three_hands(picture(name), found()[name])


def test_costs_stand_at_their_places_with_their_intervals() -> None:
    dataset = found()["surgery"]
    costs, texts = picture("surgery").panels
    ends = [mark for mark in costs.marks if isinstance(mark, Line)]
    for at, name in enumerate(dataset.change.values[::-1]):  # the edit on top
        row = dataset.sel(change=name)
        assert list(ends[2 * at].x) == [float(row.cost_low), float(row.cost_high)]
        assert list(ends[2 * at + 1].x) == [float(row.cost)]
        assert list(ends[2 * at + 1].y) == [at]
    assert costs.y.names[-1] == "edit"
    assert picture("surgery").title.endswith("in all heads of L2")
    assert lines(texts)["after"].y == pytest.approx(dataset.loss_after.values)
    assert lines(texts)["random"].y == pytest.approx(dataset.loss_control.sel(control="size").values)


def test_maps_hold_the_numbers_and_frame_the_strongest() -> None:
    dataset = found()["reversed_attention"]
    heads, tokens = (panel.marks[0] for panel in picture("reversed_attention").panels)
    assert isinstance(heads, Cells)
    assert isinstance(tokens, Cells)
    assert np.array_equal(heads.values, dataset.norm.values)
    assert len(heads.marked) == 5
    assert np.unravel_index(dataset.norm.values.argmax(), dataset.norm.shape) in heads.marked
    assert tokens.values == pytest.approx(dataset.received.values.sum(1))
    slope = picture("patching").panels[1].marks[0]
    assert isinstance(slope, Cells)
    assert np.array_equal(slope.values, found()["patching"].slope.values)


def test_curves_run_from_left_to_right() -> None:
    curve = lines(picture("patching").panels[0])
    assert list(curve["loss"].x) == [-0.1, 0.0, 0.1]
    assert curve["loss"].y == pytest.approx(found()["patching"].loss.values[[1, 2, 0]])
    dataset = found()["faithfulness"]
    loss = lines(picture("faithfulness").panels[0])
    assert list(loss["reversed"].x) == [0.0, 50.0, 100.0]
    assert loss["reversed"].y == pytest.approx(dataset.loss.sel(ranking="reversed")[0].values[[1, 2, 0]])
    assert loss["random"].colour == "null"
    assert len(picture("faithfulness").panels) == 3
