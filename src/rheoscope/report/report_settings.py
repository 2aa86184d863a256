"""How a report runs an analysis: with the settings of its declaration, derived from the results so far."""

from collections.abc import Callable
from typing import Any

from rheoscope.catalogue import analysis_by_name
from rheoscope.covers.agreement import words as agreement
from rheoscope.report.analysis_runs import Request, Settings, is_long
from rheoscope.space.results import Results


def clearest_head_settings(max_per_list: int) -> Callable[[Results], dict[str, Settings]]:
    """Settings for the pairs of the clearest heads of every list."""

    def settings(results: Results) -> dict[str, Settings]:
        heads = agreement.clearest_heads(agreement.required_agreement(results), max_per_list)
        return {f"L{layer}.H{head}": {"layer": layer, "head": head, "top": 2} for layer, head in heads}

    return settings


def report_request(name: str, **settings: Any) -> Request:
    """An analysis as a report runs it, with further settings."""
    spec = analysis_by_name(name)
    return Request(name, lambda results: {"": spec.report_settings(results, is_long(results.trace)) | settings})
