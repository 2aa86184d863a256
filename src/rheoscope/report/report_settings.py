"""The request of an analysis with the settings that its declaration has for reports."""

from typing import Any

from rheoscope.catalogue import analysis_by_name
from rheoscope.report.analysis_runs import Request, is_long


def report_request(name: str, **settings: Any) -> Request:
    """An analysis as a report runs it, with further settings."""
    spec = analysis_by_name(name)
    return Request(
        name,
        lambda results: {"": spec.report_settings(results, is_long(results.trace)) | settings},
        waits_for=spec.depends_on,
    )
