"""Answers of the default model that the tests of the report share, asked once."""

from functools import cache
from typing import Any

from rheoscope.report.answers import Answers
from rheoscope.report.asking import Subject, ask
from rheoscope.report.jobs import JOBS, Job
from tests.report.parts import Parts
from tests.report.plot.cases import TEXT, by_three_hands, model


def answered(job: Job, text: str | None = TEXT, fast: bool = False, **options: Any) -> Answers:
    """What a command asks, with the options that are typed behind it, and what it asks besides for a page."""
    subject = Subject(model(), text, None if text is None else model().trace(text))
    return ask(subject, [*job.asks(options), *job.besides(options)], not fast)


@cache
def told(text: str = TEXT) -> Answers:
    """What the main job asks of a text."""
    return answered(JOBS["flow"], text)


__all__ = ["TEXT", "Parts", "answered", "by_three_hands", "model", "told"]
