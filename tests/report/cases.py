"""Results of reports on the default model, computed once and shared by the report tests."""

from functools import cache
from typing import Any

import torch

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.report.analysis_runs import Subject, run_analyses
from rheoscope.report.report_plans import REPORTS, ReportPlan
from rheoscope.space.results import Results
from tests.pictures.cases import TEXT, check_all_renderers, model
from tests.report.parts import Parts

SHORT_TEXT = "The keys to the old"
"""A second text, too short for `agreement`."""


@cache
def small() -> Any:
    """A small untrained model with the tokenizer of the default model, for fast tests."""
    torch.manual_seed(0)
    tokenizer = model().tokenizer
    config = Config(vocabulary=model().view.embed.shape[0], width=16, depth=3, heads=4, hidden=24)
    return rs.load(Transformer(config), tokenizer=tokenizer)


def report_results(
    job: ReportPlan, text: str | None = TEXT, fast: bool = False, of: Any = None, **options: Any
) -> Results:
    """The results of a report under these options, including those for files."""
    of = of or model()
    subject = Subject(of, text, None if text is None else of.trace(text))
    return run_analyses(subject, [*job.requests(options), *job.file_requests(options)], not fast)


@cache
def flow_results(text: str = TEXT) -> Results:
    """The results of the flow report on a text."""
    return report_results(REPORTS["flow"], text)


__all__ = ["SHORT_TEXT", "TEXT", "Parts", "report_results", "check_all_renderers", "model", "small", "flow_results"]
