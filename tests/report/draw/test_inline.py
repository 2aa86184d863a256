"""Inline SVG: every value has a mark at its position, with its tooltip."""

import math

import numpy as np
import pytest

from rheoscope.picture.picture import PALETTE, Axis, Cells, Line, Panel
from rheoscope.report.draw.inline import panel_svg
from tests.report.parts import Parts


def test_missing_values_break_a_line() -> None:
    panel = Panel(
        "t", "about", (Line("a", range(5), [1, 2, math.nan, 4, 5]), Line("b", range(5), range(5), style="dots"))
    )
    parts = Parts(panel_svg(panel))
    assert parts.count("polyline") == 2
    assert parts.count("path", "dots") == 1
    assert panel_svg(panel).count("h0") == 5
    assert parts.count("rect", "hit") == 5
    assert "a: none" in parts.texts["title"][2]
    assert "nan" not in panel_svg(panel)


def test_the_marks_of_a_panel_are_searched_once_and_not_for_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    searches, counts_from_top = [], Panel.counts_from_top
    monkeypatch.setattr(
        Panel, "counts_from_top", property(lambda panel: searches.append(panel) or counts_from_top.fget(panel))
    )
    drawing = panel_svg(Panel("", "", (Line("a", range(50), range(50)), Cells(np.zeros((2, 2))))))
    assert drawing.count("<rect") == 4
    assert len(searches) == 1


def test_axes_point_up_and_right() -> None:
    points = next(
        attrs["points"]
        for tag, attrs in Parts(panel_svg(Panel("", "", (Line("a", [0, 1], [1, 2]),)))).elements
        if tag == "polyline"
    )
    (x0, y0), (x1, y1) = (tuple(map(float, pair.split(","))) for pair in str(points).split())
    assert x1 > x0
    assert y1 < y0


def test_a_logarithmic_axis_skips_values_below_zero() -> None:
    parts = Parts(panel_svg(Panel("", "", (Line("a", range(3), [0.0, 10.0, 100.0]),), y=Axis(log=True))))
    points = next(attrs["points"] for tag, attrs in parts.elements if tag == "polyline")
    assert len(str(points).split()) == 2
    assert {"10", "100"} <= set(parts.texts["text"])


def test_cells_are_shaded_by_value_and_marked() -> None:
    cells = Cells(
        np.array([[0.0, 0.5], [-1.0, math.nan]]), [["a", "b"], ["<c>", "d"]], marked=frozenset({(0, 1)}), low=-1.0
    )
    parts = Parts(panel_svg(Panel("", "", (cells,), Axis(names=("1", "2")), Axis(names=("x", "y")))))
    shades = [(attrs["fill"], attrs["fill-opacity"]) for tag, attrs in parts.elements if tag == "rect"]
    blue, orange = PALETTE["first"], PALETTE["second"]
    assert shades == [(blue, "0.00"), (blue, "0.50"), (orange, "1.00"), (PALETTE["null"], "0.25")]  # none is not 0
    assert parts.count("rect", "marked") == 1
    assert "<c>" in parts.texts["text"]


def test_a_long_label_at_the_edge_stays_inside_the_drawing() -> None:
    names = ("a very long name", "b", "c", "another very long name")
    figure_html = panel_svg(Panel("", "", (Line("", range(4), range(4)),), Axis("", names)))
    for element, attrs in Parts(figure_html).elements:
        if element == "text":
            assert 0 < float(str(attrs["x"])) < 360
