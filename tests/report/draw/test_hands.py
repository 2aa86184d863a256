"""What all hands have in common: words of others are words."""

import math

from rheoscope.report.draw.inline import figures, svg
from rheoscope.report.draw.notebook import in_notebook
from rheoscope.report.draw.paper import on_paper
from rheoscope.report.picture import Axis, Line, Panel, Picture, Shape, Word
from tests.report.parts import Parts


def test_words_of_others_are_escaped_everywhere() -> None:
    evil = '<script>"&'
    marks = Line(evil, [0, 1], [0, 1], tip=evil), Shape(evil, [0, 1, 1], [0, 0, 1], tip=evil), Word(0, 0, evil)
    drawn = Picture(evil, evil, (Panel(evil, evil, marks, Axis(evil, (evil, evil)), Axis(evil)),))
    plain = Panel(evil, evil, (Line(evil, [0, 1], [0, 1]), Line("b", [0, 1], [0, 1])), Axis(evil, (evil, evil)))
    assert "<script>" not in figures(Picture(evil, evil, (plain,)))
    assert "<script>" not in figures(drawn)
    assert Parts(figures(drawn)).count("script") == 0
    assert "<script>" not in in_notebook(drawn).to_json().replace("\\u003c", "<").replace("\\u003e", ">")
    dollars = Panel("", "", (Word(0, 0, "$x_$"),), Axis(names=("$a^$",)))
    on_paper(Picture("", "", (dollars,))).draw_without_rendering()


def test_a_unit_is_as_long_on_both_axes_where_a_panel_says_so() -> None:
    """Whatever the shape of the panel: a circle is round."""
    flat = Panel("b", "", (Line("", [0.0, 2.0], [0.0, 1.0], style="dots", tips=["a", "b"]),), columns=2, equal=True)
    (x0, y0), (x1, y1) = (
        (float(str(attrs["cx"])), float(str(attrs["cy"])))
        for tag, attrs in Parts(svg(flat)).elements
        if tag == "circle"
    )
    assert abs((x1 - x0) - 2 * (y0 - y1)) < 0.5
    picture = Picture("", "", (Panel("a", "", ()), flat))
    assert on_paper(picture).axes[1].get_aspect() == 1
    layout = in_notebook(picture).layout
    assert (layout.yaxis.scaleanchor, layout.yaxis2.scaleanchor) == (None, "x2")


def test_rings_stars_and_hairs_are_drawn_and_each_dot_has_its_own_words() -> None:
    marks = (
        Line("", [0, 1, 2], [0, math.nan, 1], "null", "hair"),
        Line("", [0, 1], [0, 1], style="dots", tips=["one", "two"]),
        Line("", [0], [0], style="rings"),
        Line("", [1], [1], style="stars", tips=["next"]),
        Word(1, 1, "up", "above", strong=True),
        Word(0, 0, "down", "below"),
    )
    panel = Panel("a", "", marks)
    parts = Parts(svg(panel))
    assert parts.texts["title"] == ["one", "two", "next"]
    assert (parts.count("circle", "ring"), parts.count("polygon", "star"), parts.count("polyline", "hair")) == (1, 1, 2)
    assert parts.count("text", "strong") == 1
    assert parts.count("rect", "hit") == 0
    hair, dots, ring, star, up, _ = in_notebook(Picture("", "", (panel,))).data
    assert (hair.hoverinfo, ring.marker.symbol, star.marker.symbol) == ("skip", "circle-open", "star")
    assert list(dots.customdata) == ["one", "two"]
    assert (up.textposition, up.text[0]) == ("top center", "<b> up </b>")
    paper = on_paper(Picture("", "", (panel,)))
    paper.draw_without_rendering()
    assert [text.get_text() for text in paper.axes[0].texts] == ["up", "down"]
