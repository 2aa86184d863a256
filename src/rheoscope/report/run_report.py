"""How every command runs: ask, tell what is known, write the files that were asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.files import check_outputs, check_writable, unused_name
from rheoscope.messages.advice import Advice
from rheoscope.picture.blocks import with_heading_suffix
from rheoscope.report import layer_table, text_blocks
from rheoscope.report.analysis_runs import Controls, Subject, run_analyses
from rheoscope.report.console import console
from rheoscope.report.csv_files import COMPARED_DIRECTORY, check_table_directory, save_csv
from rheoscope.report.findings import findings, findings_dataset
from rheoscope.report.idle_cores import leave_one_core
from rheoscope.report.json_file import save_json
from rheoscope.report.progress_bars import progress_bar
from rheoscope.report.report_page import comparison_page, report_page
from rheoscope.report.report_plans import Options, ReportPlan
from rheoscope.report.shell_advice import as_cli_advice
from rheoscope.report.terminal import Terminal
from rheoscope.report.verdicts import QUESTIONS, verdicts_dataset
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model, Text
from rheoscope.space.results import Results

if TYPE_CHECKING:
    import xarray

DEFAULT_REPORT_PATH = Path("report.html")
"""Where the page goes when nobody says; a name that is taken is left alone."""


@dataclass(frozen=True)
class OutputFiles:
    """Where answers go besides the terminal; names that cannot be written to are refused at once, before anything is computed."""

    json: Path | None = None
    csv: Path | None = None
    html: Path | None = None
    input_path: Path | None = None
    """Where the text comes from, if from a file."""
    default_page: bool = False
    """Whether a page is written beside the user even where no name was typed."""

    def __post_init__(self) -> None:
        check_outputs([path for path in (self.json, self.html) if path is not None], self.csv, self.input_path)
        if self.csv is not None:
            check_table_directory(self.csv)
        if self.wants_page and self.html is None:
            _check_default_report()

    @property
    def has_any(self) -> bool:
        return self.json is not None or self.csv is not None or self.html is not None

    @property
    def wants_page(self) -> bool:
        """Whether there is a page among them."""
        return self.default_page or self.html is not None


def _check_default_report() -> None:
    """Raise unless the report can be written to the current directory under its default name."""
    try:
        check_writable(unused_name(DEFAULT_REPORT_PATH))
    except RheoscopeError as error:
        raise RheoscopeError(
            error.message, Advice("", "--html and a name in another directory, or --no-html")
        ) from error


def run_report(
    plan: ReportPlan,
    model: Model,
    input_text: Text | None,
    options: Options,
    files: OutputFiles,
    fast: bool = False,
    explain: bool = False,
    control_factories: Sequence[Callable[[], Model]] = (),
) -> None:
    """One command on one text, or on weights alone; `controls` make untrained models that the text is put through too."""
    terminal = Terminal(console(), plan.sections, explain)
    results = _run_and_print(plan, model, input_text, options, files, fast, terminal, control_factories)
    messages = write_files(all_datasets(results), report_page(plan, results).save if files.wants_page else None, files)
    terminal.print_skipped(results)
    terminal.print_files(messages)
    raise_failures(results)


def compare_texts(
    plan: ReportPlan,
    model: Model,
    texts: Sequence[Text],
    options: Options,
    files: OutputFiles,
    fast: bool = False,
    explain: bool = False,
) -> None:
    """Two texts, layer by layer beside each other."""
    terminal = Terminal(console(), [], explain)
    both_results = [_run_and_print(plan, model, input_text, options, files, fast, terminal) for input_text in texts]
    first_results, second_results = both_results
    save_page = comparison_page(plan, first_results, second_results).save if files.wants_page else None
    messages = write_files(all_datasets(first_results), save_page, files, all_datasets(second_results))
    for block in layer_table.comparison_blocks(first_results, second_results):
        terminal.print_block(block)
    for number, results in enumerate(both_results, 1):
        terminal.print_heading(f"Text {number}: {text_blocks.report_title(results)}")
        for section in plan.sections:
            if layer_table.blocks is not section.blocks and not section.page_only:
                for block in section.blocks(results):
                    terminal.print_block(with_heading_suffix(block, f" (text {number})"))
        terminal.print_skipped(results)
    terminal.print_files(messages)
    raise_failures(first_results, second_results)


def _run_and_print(
    plan: ReportPlan,
    model: Model,
    input_text: Text | None,
    options: Options,
    files: OutputFiles,
    fast: bool,
    terminal: Terminal,
    control_factories: Sequence[Callable[[], Model]] = (),
) -> Results:
    """Everything asked, told as it is known; a job that has nothing to tell says why."""
    trace = None if input_text is None else model.trace(input_text)
    subject = Subject(model, input_text, trace)
    requests = [*plan.requests(options), *(plan.file_requests(options) if files.has_any else [])]
    terminal.print_header(Results(model.view, model.token_strings, trace))

    def on_result(results: Results) -> None:
        if plan.required in results.skipped:
            raise RheoscopeError(results.skipped[plan.required])
        terminal.print_ready(with_cli_advice(results))

    with progress_bar() as on_progress:
        return with_cli_advice(
            run_analyses(
                subject, requests, not fast, control_subjects(control_factories, input_text), on_result, on_progress
            )
        )


def with_cli_advice(results: Results) -> Results:
    """The same, every reason why something is left out with its advice as it is typed in a shell."""
    reasons = {
        key: as_cli_advice(reason, f"rheoscope analyse {key.split()[0]}") for key, reason in results.skipped.items()
    }
    return replace(results, skipped=reasons)


def control_subjects(control_factories: Sequence[Callable[[], Model]], input_text: Text | None) -> Controls:
    """The text in every control; where there is none, nothing to wait for."""
    if input_text is None or not control_factories:
        return ()
    leave_one_core()

    def make_subject(make_model: Callable[[], Model]) -> Subject:
        control = make_model()
        return Subject(control, input_text, control.trace(input_text))

    return [partial(make_subject, make_model) for make_model in control_factories]


def write_files(
    datasets: "dict[str, xarray.Dataset]",
    save_page: Any,
    files: OutputFiles,
    compared_datasets: "dict[str, xarray.Dataset] | None" = None,
) -> list[str]:
    """Every file that was asked for, in the order in which they are typed, and a line for each."""
    messages = [] if files.json is None else [save_json(datasets, files.json, compared_datasets)]
    if files.csv is not None:
        messages.append(save_csv(datasets, files.csv))
        messages += [] if compared_datasets is None else [save_csv(compared_datasets, files.csv / COMPARED_DIRECTORY)]
    if save_page is not None:
        messages.append(save_page(unused_name(DEFAULT_REPORT_PATH) if files.html is None else files.html))
    return messages


def raise_failures(*all_results: Results) -> None:
    """A fault of the program is an error once everything else is told and written."""
    reasons = {key: results.skipped[key] for results in all_results for key in results.failed_keys}
    if reasons:
        name, reason = next(iter(reasons.items()))
        other_failures = f", and so did {', '.join(list(reasons)[1:])}" if len(reasons) > 1 else ""
        raise RheoscopeError(f"{name} failed, {reason}{other_failures}; everything else is told and written")


def all_datasets(results: Results) -> "dict[str, xarray.Dataset]":
    """Every Dataset under its key, and what was found in them."""
    datasets = dict(results.datasets)
    if len(datasets) > 1 and results.has_nulls:
        datasets["findings"] = findings_dataset(*findings(results))
    if all(results.has_run(*question.needs) for question in QUESTIONS):
        datasets["verdicts"] = verdicts_dataset(results)
    return datasets
