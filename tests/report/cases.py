"""Answers of the default model that the tests of the report share, asked once."""

from functools import cache

from rheoscope.report.answers import Answers
from rheoscope.report.asking import Subject, ask
from rheoscope.report.jobs import JOBS
from tests.report.parts import Parts
from tests.report.plot.cases import TEXT, by_three_hands, model


@cache
def told(text: str = TEXT) -> Answers:
    """What the main job asks of a text."""
    return ask(Subject(model(), text, model().trace(text)), JOBS["flow"].asks({}))


__all__ = ["TEXT", "Parts", "by_three_hands", "model", "told"]
