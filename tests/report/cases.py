"""Answers of the default model that the tests of the report share, asked once."""

from functools import cache
from typing import Any

import torch

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.report.report_plans import JOBS, Job
from rheoscope.report.run_analyses import Subject, ask
from rheoscope.space.results import Answers
from tests.pictures.cases import TEXT, by_three_hands, model
from tests.report.parts import Parts


@cache
def small() -> Any:
    """Untrained and narrow, with the tokens of the default model: of how a job runs it shows as much, and sooner."""
    torch.manual_seed(0)
    tokenizer = model().tokenizer
    config = Config(vocabulary=model().view.embed.shape[0], width=16, depth=3, heads=4, hidden=24)
    return rs.load(Transformer(config), tokenizer=tokenizer)


def answered(job: Job, text: str | None = TEXT, fast: bool = False, of: Any = None, **options: Any) -> Answers:
    """What a command asks, with the options that are typed behind it, and what it asks besides for a page."""
    of = of or model()
    subject = Subject(of, text, None if text is None else of.trace(text))
    return ask(subject, [*job.asks(options), *job.besides(options)], not fast)


@cache
def told(text: str = TEXT) -> Answers:
    """What the main job asks of a text."""
    return answered(JOBS["flow"], text)


__all__ = ["TEXT", "Parts", "answered", "by_three_hands", "model", "small", "told"]
