"""A report on many pairs of texts: what the terminal prints, and the files."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rheoscope.covers.circuit.analysis import CIRCUIT, circuit_of_pairs
from rheoscope.covers.patch.analysis import PATCH
from rheoscope.covers.patch.over_pairs import patch_pairs
from rheoscope.covers.patch.pairs import Pair
from rheoscope.report import run_report, text_blocks
from rheoscope.report.console import console
from rheoscope.report.progress_bars import progress_bar
from rheoscope.report.report_plan import Options, ReportPlan
from rheoscope.report.terminal import Terminal
from rheoscope.running.progress import listen
from rheoscope.running.runner import RunnableModel
from rheoscope.space.results import Results

if TYPE_CHECKING:
    import xarray


def runs_of_pairs(
    model: RunnableModel, pairs: Sequence[Pair], options: Options
) -> "dict[str, Callable[[], xarray.Dataset]]":
    """What is computed under these options, by the name of the analysis: patching, and a circuit if edges are requested."""
    chosen = {name: value for name, value in options.items() if value is not None}
    common: dict[str, Any] = {name: chosen[name] for name in ("answers", "metric", "token")}
    runs: dict[str, Callable[[], xarray.Dataset]] = {
        PATCH.name: partial(patch_pairs, model, pairs, top=chosen["top"], **common)
    }
    if "edges" in chosen:
        searched = {name: chosen[name] for name in ("edges", "tries", "min_effect", "draws") if name in chosen}
        runs[CIRCUIT.name] = partial(circuit_of_pairs, model, pairs, **common, **searched)
    return runs


def run_on_pairs(
    plan: ReportPlan,
    model: RunnableModel,
    pairs: Sequence[Pair],
    options: Options,
    files: run_report.OutputFiles,
    explain: bool = False,
) -> None:
    """Patch some pairs of texts, print the sections of the plan, and write the files."""
    from rheoscope.report.report_page import report_page  # with the words of all analyses

    terminal = Terminal(console(), [], explain)
    results = replace(Results(model.view, model.token_strings, None), surface="shell")
    terminal.print_line(text_blocks.model_line(results), "dim")
    terminal.add_sections(plan.sections)
    with progress_bar() as on_progress:
        for name, run in runs_of_pairs(model, pairs, options).items():
            with listen(on_progress(name)):
                results = results.with_result(name, run())
            terminal.print_ready(results)
    datasets = dict(results.datasets) if files.wants_datasets else {}
    save_page = report_page(plan, results).save if files.wants_page else None
    terminal.print_files(run_report.write_files(datasets, save_page, files))
