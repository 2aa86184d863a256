"""What all hands have in common: words of others are words."""

from rheoscope.report.draw.inline import figures
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
