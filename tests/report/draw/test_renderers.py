"""All renderers escape text and draw the same scales."""

import math
from itertools import pairwise

import numpy as np
import pytest

from rheoscope.picture.picture import Axis, Cells, Label, Line, Panel, Picture, Shape
from rheoscope.report.draw.inline import panel_svg, picture_html
from rheoscope.report.draw.paper import to_figure
from tests.report.parts import Parts


def test_user_text_is_escaped_in_svg() -> None:
    evil = '<script>"&'
    marks = Line(evil, [0, 1], [0, 1], tip=evil), Shape(evil, [0, 1, 1], [0, 0, 1], tip=evil), Label(0, 0, evil)
    rendered = Picture(evil, evil, (Panel(evil, evil, marks, Axis(evil, (evil, evil)), Axis(evil)),))
    plain = Panel(evil, evil, (Line(evil, [0, 1], [0, 1]), Line("b", [0, 1], [0, 1])), Axis(evil, (evil, evil)))
    assert "<script>" not in picture_html(Picture(evil, evil, (plain,)))
    assert "<script>" not in picture_html(rendered)
    assert Parts(picture_html(rendered)).count("script") == 0
    dollars = Panel("", "", (Label(0, 0, "$x_$"),), Axis(names=("$a^$",)))
    to_figure(Picture("", "", (dollars,))).draw_without_rendering()


def test_equal_panels_have_equal_units() -> None:
    """A circle is round in a panel of any shape."""
    flat = Panel("b", "", (Line("", [0.0, 2.0], [0.0, 1.0], style="dots", tips=["a", "b"]),), columns=2, equal=True)
    (x0, y0), (x1, y1) = (
        (float(str(attrs["cx"])), float(str(attrs["cy"])))
        for tag, attrs in Parts(panel_svg(flat)).elements
        if tag == "circle"
    )
    assert abs((x1 - x0) - 2 * (y0 - y1)) < 0.5
    picture = Picture("", "", (Panel("a", "", ()), flat))
    assert to_figure(picture).axes[1].get_aspect() == 1


def test_rings_stars_thin_lines_and_tooltips_are_drawn() -> None:
    marks = (
        Line("", [0, 1, 2], [0, math.nan, 1], "null", "hair"),
        Line("", [0, 1], [0, 1], style="dots", tips=["one", "two"]),
        Line("", [0], [0], style="rings"),
        Line("", [1], [1], style="stars", tips=["next"]),
        Label(1, 1, "up", "above", strong=True),
        Label(0, 0, "down", "below"),
    )
    panel = Panel("a", "", marks)
    parts = Parts(panel_svg(panel))
    assert parts.texts["title"] == ["one", "two", "next"]
    assert (parts.count("circle", "ring"), parts.count("polygon", "star"), parts.count("polyline", "hair")) == (1, 1, 2)
    assert parts.count("text", "strong") == 1
    assert parts.count("rect", "hit") == 0
    paper = to_figure(Picture("", "", (panel,)))
    paper.draw_without_rendering()
    assert [text.get_text() for text in paper.axes[0].texts] == ["up", "down"]


@pytest.mark.parametrize(
    ("cells", "html", "span"),
    [
        (Cells(np.array([[0.2, 0.9]]), name="share"), ["0", "0.5", "1"], (0.0, 1.0)),
        (Cells(np.array([[-7.0, 2.0]]), low=-5.0, high=5.0, name="z"), ["≤ −5", "0", "5"], (-1.0, 1.0)),
        (Cells(np.array([[-1.0, 1.0]]), low=-1.0, name="lengths", log=True), ["0.1", "1", "10"], (-1.0, 1.0)),
        (Cells(np.array([[0.0, 1.0]]), centre=0.25, name="share"), ["0", "0.25", "1"], (-1 / 3, 1.0)),
    ],
)
def test_every_renderer_draws_the_colour_scale(cells: Cells, html: list[str], span: tuple[float, float]) -> None:
    picture = Picture("", "", (Panel("a", "", (cells,), Axis(names=("0", "1")), Axis(names=("L0",))),))
    page = Parts(picture_html(picture))
    assert (page.texts["b"], page.texts["span"][-1]) == (html, cells.name)
    bar = to_figure(picture).axes[1]
    assert [label.get_text() for label in bar.get_yticklabels()] == html
    assert (bar.get_ylabel(), bar.get_ylim()) == (cells.name, pytest.approx(span))


def test_the_scale_has_the_colours_of_the_cells() -> None:
    """Both ends and the middle of the bar have the opacity of the cells."""
    cells = Cells(np.array([[0.0, 1.0]]), centre=0.25, name="share")
    assert [(round(shade, 3), side, round(index, 3)) for shade, side, index in cells.colour_stops] == [
        (-0.333, "second", 0.0), (0.0, "second", 0.25), (0.0, "first", 0.25), (1.0, "first", 1.0)
    ]  # fmt: skip
    picture = Picture("", "", (Panel("a", "", (cells,)),))
    assert "linear-gradient(to right, #d9622b55 0%, #d9622b00 25%, #2f6fbf00 25%, #2f6fbfff 100%)" in picture_html(
        picture
    )


def test_tick_labels_do_not_overlap_and_counts_have_integer_ticks() -> None:
    names = tuple(f"{index} <|endoftext|>" for index in range(30))
    labels = Panel("a", "", (Line("", range(30), range(30)),), Axis("", names), columns=3)
    heads = Panel("b", "", (Line("", [1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4]),), Axis("heads used"))
    figure = to_figure(Picture("", "", (labels, heads)))
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert len(boxes) > 3
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert all(float(tick) == round(float(tick)) for tick in figure.axes[1].get_xticks())
