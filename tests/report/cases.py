"""Results of reports on the default model, computed once and shared by the report tests."""

from dataclasses import replace
from functools import cache
from typing import Any

from rheoscope.catalogue import analysis_by_name
from rheoscope.report.analysis_runs import Subject, empty_results, run_analyses, run_analysis
from rheoscope.report.report_plan import ReportPlan
from rheoscope.report.report_plans import REPORTS
from rheoscope.shapes import RheoscopeError
from rheoscope.space.results import Datasets, Results
from tests.attention.cases import without_jaxtyping_checks
from tests.pictures.cases import TEXT, check_all_renderers, model, small
from tests.report.parts import Parts
from tests.shared_results import shared_result

SHORT_TEXT = "The keys to the old"
"""A second text, too short for `agreement`."""


def report_results(
    job: ReportPlan, text: str | None = TEXT, fast: bool = False, of: Any = None, **options: Any
) -> Results:
    """The results of a report under these options, including those for files."""
    of = of or model()
    subject = Subject(of, text, None if text is None else of.trace(text))
    return run_analyses(subject, job.all_requests(options), not fast)


def opened_by_name(results: Results) -> Results:
    """The same results, of a model that commands can name."""
    facts = {name: value for name, value in results.view.facts.items() if name != "opened_from"}
    return replace(results, view=replace(results.view, facts=facts))


@cache
def flow_results(text: str = TEXT) -> Results:
    """The results of the flow report on a text. Those of the weights are the same for every text."""
    subject = Subject(model(), text, model().trace(text))
    datasets, skipped = shared_result(f"flow {text}", lambda: flow_datasets(subject))
    return replace(empty_results(subject, draw_nulls=True), datasets=datasets, skipped=skipped)


def flow_datasets(subject: Subject) -> tuple[Datasets, dict[str, RheoscopeError]]:
    """The results and the skipped analyses of the flow report on a text."""

    def run(own: Subject, name: str, *arguments: Any) -> Any:
        if subject.text != TEXT and analysis_by_name(name).needs == "view":
            return flow_results().datasets[name]
        return run_analysis(own, name, *arguments)

    with without_jaxtyping_checks():  # the tests of each analysis check the shapes
        results = run_analyses(subject, REPORTS["flow"].all_requests({}), runner=run)
    assert results.failed_keys == ()
    return results.datasets, results.skipped


__all__ = [
    "SHORT_TEXT",
    "TEXT",
    "Parts",
    "report_results",
    "check_all_renderers",
    "model",
    "small",
    "flow_results",
    "opened_by_name",
]
