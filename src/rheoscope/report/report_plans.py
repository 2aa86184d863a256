"""The plan of every report: the analyses that it runs, and the sections that it shows.

A plan is derived from the declarations of the analyses. An analysis with a report of its own declares it in its `words.py`.
"""

from collections.abc import Iterator
from functools import partial

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name, words_by_name
from rheoscope.messages.message import Message
from rheoscope.picture.blocks import Block
from rheoscope.report import field_blocks, text_blocks
from rheoscope.report.analysis_runs import Request, request
from rheoscope.report.findings import ALL_WORDS
from rheoscope.report.report_plan import FLOW, Options, ReportPlan, Section
from rheoscope.report.report_sections import declared_sections, findings_section
from rheoscope.report.report_settings import report_request
from rheoscope.report.text_report import TEXT_REPORT
from rheoscope.space.report_run import ReportRun
from rheoscope.space.results import Results
from rheoscope.space.words import OwnReport


def own_plan(owner: str, report: OwnReport) -> ReportPlan:
    """The plan of a report that an analysis declares as its own."""
    sections = declared_sections(report.name)
    in_terminal = [section for section in sections if not section.page_only]
    page_only = [section for section in sections if section.page_only]
    names = [name for name, _ in report_runs(report.name, for_files=False)]
    finding_sections = [findings_section(names)] if report.has_findings else []
    return ReportPlan(
        partial(_own_title, report.title),
        partial(_declared_requests, report.name, False),
        lambda: (*in_terminal, *finding_sections, *page_only),
        partial(_declared_requests, report.name, True),
        required=owner,
    )


def _own_title(title: Message, results: Results) -> Message:
    return Message(title.template, text=text_blocks.report_title(results), model=results.view.facts["model"])


def report_runs(report: str, for_files: bool) -> list[tuple[str, ReportRun]]:
    """The analyses that a report runs, in their order, for the terminal or in addition for files."""
    runs = [(name, run) for name in ANALYSIS_MODULES for run in analysis_by_name(name).report_runs]
    return sorted(
        ((name, run) for name, run in runs if (run.report, run.for_files) == (report, for_files)),
        key=lambda name_and_run: name_and_run[1].order,
    )


def _declared_requests(report: str, for_files: bool, options: Options) -> list[Request]:
    return [
        Request(name, run.settings_by_key)
        if run.settings_by_key is not None
        else report_request(name, **run.chosen_settings(options))
        for name, run in report_runs(report, for_files)
        if run.applies(options)
    ]


def _own_plans() -> Iterator[tuple[str, ReportPlan]]:
    for name, words in ALL_WORDS.items():
        if words.report is not None:
            yield words.report.name, own_plan(name, words.report)


REPORTS: dict[str, ReportPlan] = {FLOW: TEXT_REPORT, **dict(_own_plans())}
"""Name of a report → its plan."""


def analysis_blocks(results: Results, name: str) -> list[Block]:
    """The tables of one analysis: its own, or one for each axis of its fields."""
    own_tables = words_by_name(name).tables
    return field_blocks.blocks(results, name) if own_tables is None else own_tables(results)


def report_of_analysis(name: str) -> ReportPlan:
    """The plan of a report on any single analysis of the catalogue, with its tables."""
    return ReportPlan(
        lambda results: Message("{analysis}: {text}", analysis=name, text=text_blocks.report_title(results)),
        lambda options: [request(name, **options)],
        lambda: (Section((name,), lambda results: analysis_blocks(results, name)),),
        required=name,
    )
