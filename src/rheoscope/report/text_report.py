"""The plan of the report on a text, which is printed before its analyses are imported."""

from functools import partial

from rheoscope.report.analysis_runs import Request
from rheoscope.report.report_plan import Options, ReportPlan, Section
from rheoscope.report.text_blocks import report_title


def _requests(for_files: bool, options: Options) -> list[Request]:
    from rheoscope.report.report_sections import text_requests

    return text_requests(for_files, options)


def _sections() -> tuple[Section, ...]:
    from rheoscope.report.report_sections import text_sections

    return text_sections()


TEXT_REPORT = ReportPlan(report_title, partial(_requests, False), _sections, partial(_requests, True))
