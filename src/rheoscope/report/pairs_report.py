"""A report on many pairs of texts: what the terminal prints, and the files."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rheoscope.report import run_report, text_blocks
from rheoscope.report.console import console
from rheoscope.report.progress_bars import progress_bar
from rheoscope.report.report_plan import ReportPlan
from rheoscope.report.terminal import Terminal
from rheoscope.running.progress import listen
from rheoscope.running.runner import RunnableModel
from rheoscope.space.results import Results

if TYPE_CHECKING:
    import xarray


def run_on_pairs(
    plan: ReportPlan,
    model: RunnableModel,
    runs: "Mapping[str, Callable[[], xarray.Dataset]]",
    files: run_report.OutputFiles,
    explain: bool = False,
) -> None:
    """Run the analyses of some pairs, one after the other, print the sections of the plan, and write the files."""
    from rheoscope.report.report_page import report_page  # with the words of all analyses

    terminal = Terminal(console(), [], explain)
    results = replace(Results(model.view, model.token_strings, None), surface="shell")
    terminal.print_line(text_blocks.model_line(results), "dim")
    terminal.add_sections(plan.sections)
    with progress_bar() as on_progress:
        for name, run in runs.items():
            with listen(on_progress(name)):
                results = results.with_result(name, run())
            terminal.print_ready(results)
    datasets = dict(results.datasets) if files.wants_datasets else {}
    save_page = report_page(plan, results).save if files.wants_page else None
    terminal.print_files(run_report.write_files(datasets, save_page, files))
