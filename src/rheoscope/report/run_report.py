"""Run a report: the analyses, the output in the terminal as results arrive, and the requested files."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.files import check_outputs, check_writable, unused_name
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message, join
from rheoscope.picture.blocks import with_text_number
from rheoscope.report import text_blocks
from rheoscope.report.analysis_lanes import has_lanes, run_in_lanes
from rheoscope.report.analysis_runs import Schedule, Subject, run_analyses, run_in_turn
from rheoscope.report.card_cache import find_card
from rheoscope.report.console import console
from rheoscope.report.csv_files import COMPARED_DIRECTORY, check_table_directory, save_csv
from rheoscope.report.json_file import save_json
from rheoscope.report.progress_bars import progress_bar
from rheoscope.report.report_plan import Options, ReportPlan
from rheoscope.report.shared_pass import share_passes
from rheoscope.report.terminal import Terminal
from rheoscope.running.runner import RunnableModel
from rheoscope.running.streamed_weights import weights_of
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Input, Text
from rheoscope.space.results import Results
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

DEFAULT_REPORT_PATH = Path("report.html")
"""The default name of the page. If it is taken, a number is added."""


@dataclass(frozen=True)
class OutputFiles:
    """The files that a report writes. A path that cannot be written is refused before anything is computed."""

    json: Path | None = None
    csv: Path | None = None
    html: Path | None = None
    input_path: Path | None = None
    """The file with the text, the image or the sound, if it comes from a file."""
    input_option: str = "--file"
    """The option that named it."""
    default_page: bool = False
    """Whether a page is written to the current directory if no path was given."""

    def __post_init__(self) -> None:
        check_outputs([path for path in (self.json, self.html) if path is not None], self.csv, self.input_path)
        if self.csv is not None:
            check_table_directory(self.csv)
        if self.wants_page and self.html is None:
            _check_default_report()

    @property
    def has_any(self) -> bool:
        return self.wants_datasets or self.html is not None

    @property
    def wants_datasets(self) -> bool:
        """Whether the numbers are written, and not only a page."""
        return self.json is not None or self.csv is not None

    @property
    def wants_page(self) -> bool:
        """Whether a page is written."""
        return self.default_page or self.html is not None


def _check_default_report() -> None:
    """Raise unless the report can be written to the current directory under its default name."""
    try:
        check_writable(unused_name(DEFAULT_REPORT_PATH))
    except RheoscopeError as error:
        raise RheoscopeError(error.message, Advice("", "--no-html, or --html OTHER_DIR/report.html")) from error


def run_report(
    plan: ReportPlan,
    model: RunnableModel,
    input_text: Input | None,
    options: Options,
    files: OutputFiles,
    fast: bool = False,
    explain: bool = False,
    full: bool = False,
) -> None:
    """Run a report on one text, or on weights alone. Without `full`, the terminal shows only the sections of the story."""
    terminal = Terminal(console(), [], explain)
    trace = trace_and_print(model, input_text, terminal)
    from rheoscope.report.report_page import report_page  # with the words of all analyses

    sections = [section for section in plan.sections if full or not section.full_only]
    terminal.add_sections(sections)
    results = _run_and_print(plan, model, input_text, trace, options, files, fast, terminal, full)
    datasets = all_datasets(results) if files.wants_datasets else {}
    messages = write_files(datasets, report_page(plan, results).save if files.wants_page else None, files)
    if len(sections) == len(plan.sections):
        terminal.print_skipped(results)
    terminal.print_files(messages)
    raise_failures(results)


def compare_texts(
    plan: ReportPlan,
    model: RunnableModel,
    texts: Sequence[Text],
    options: Options,
    files: OutputFiles,
    fast: bool = False,
    explain: bool = False,
) -> None:
    """Run a report on two texts and compare them layer by layer."""
    from rheoscope.report import layer_table
    from rheoscope.report.report_page import comparison_page

    terminal = Terminal(console(), [], explain)
    both_results = []
    for input_text in texts:
        trace = trace_and_print(model, input_text, terminal)
        both_results.append(_run_and_print(plan, model, input_text, trace, options, files, fast, terminal, full=True))
    first_results, second_results = both_results
    save_page = comparison_page(plan, first_results, second_results).save if files.wants_page else None
    datasets = [all_datasets(results) if files.wants_datasets else {} for results in both_results]
    messages = write_files(datasets[0], save_page, files, datasets[1])
    for block in layer_table.comparison_blocks(first_results, second_results):
        terminal.print_block(block)
    for number, results in enumerate(both_results, 1):
        title = text_blocks.report_title(results)
        terminal.print_heading(Message("Text {number}: {text}", number=number, text=title))
        for section in plan.sections:
            if layer_table.blocks is not section.blocks and not section.page_only:
                for block in section.blocks(results):
                    terminal.print_block(with_text_number(block, number))
        terminal.print_skipped(results)
    terminal.print_files(messages)
    raise_failures(first_results, second_results)


def trace_and_print(model: RunnableModel, input_text: Input | None, terminal: Terminal) -> Trace | None:
    """The text in the model, if there is one.

    Both are printed at once, before the analyses and the page are imported, which takes half a second.
    """
    trace = None if input_text is None else model.trace(input_text)
    terminal.print_header(Results(model.view, model.token_strings, trace))
    return trace


def _run_and_print(
    plan: ReportPlan,
    model: RunnableModel,
    input_text: Input | None,
    trace: Trace | None,
    options: Options,
    files: OutputFiles,
    fast: bool,
    terminal: Terminal,
    full: bool = False,
) -> Results:
    """Run all analyses and print each section when it is ready. Raises if the required analysis has no result."""
    needs_all = full or files.has_any or files.wants_page
    requests = [*plan.requests(options), *(plan.file_requests(options) if needs_all else [])]

    def in_shell(results: Results) -> Results:
        return replace(results, surface="shell", text_options=text_options(files, results.trace, input_text))

    def on_result(results: Results) -> None:
        if plan.required in results.skipped:
            raise results.skipped[plan.required]
        terminal.print_ready(in_shell(results))

    with progress_bar() as on_progress:
        schedule = choose_schedule(model, trace)
        card, subject = find_card(model.view), Subject(model, input_text, trace)
        results = run_analyses(subject, requests, not fast, on_result, on_progress, card=card, schedule=schedule)
    return in_shell(results)


def choose_schedule(model: RunnableModel, trace: Trace | None) -> Schedule:
    """When the analyses of a text run: together through the blocks of a streamed model, two at once on a short text, or in turn."""
    weights = None if trace is None else weights_of(model.network)
    if weights is not None:
        return share_passes(weights)
    return run_in_lanes if has_lanes(trace) else run_in_turn


def text_options(files: OutputFiles, trace: Trace | None, input_text: Input | None) -> str:
    """The options that give a text, an image or a sound from a file to another command. Empty for a text that was typed.

    >>> text_options(OutputFiles(input_path=Path("my notes.txt")), None, "The keys")
    "--file 'my notes.txt'"
    """
    if files.input_path is None:
        return ""
    is_cut = files.input_option == "--file" and trace is not None and not isinstance(input_text, str)
    n_first = f" --first {len(trace)}" if is_cut and trace is not None else ""
    return f"{files.input_option} {shlex.quote(str(files.input_path))}{n_first}"


def write_files(
    datasets: "dict[str, xarray.Dataset]",
    save_page: Any,
    files: OutputFiles,
    compared_datasets: "dict[str, xarray.Dataset] | None" = None,
) -> list[str]:
    """Write all requested files. Returns one line per file."""
    messages = [] if files.json is None else [save_json(datasets, files.json, compared_datasets)]
    if files.csv is not None:
        messages.append(save_csv(datasets, files.csv))
        messages += [] if compared_datasets is None else [save_csv(compared_datasets, files.csv / COMPARED_DIRECTORY)]
    if save_page is not None:
        messages.append(save_page(unused_name(DEFAULT_REPORT_PATH) if files.html is None else files.html))
    return messages


def raise_failures(*all_results: Results) -> None:
    """Raise the internal errors of a run, after everything else was printed and written."""
    failures = {key: results.reason(key) for results in all_results for key in results.failed_keys}
    if failures:
        problems = [
            Message("{analysis} failed: {reason}", analysis=key, reason=reason) for key, reason in failures.items()
        ]
        raise RheoscopeError(join("; ", [*problems, Message("all other results were printed and written")]))


def all_datasets(results: Results) -> "dict[str, xarray.Dataset]":
    """All results by key, with the findings, the story, and the card of the model that the page shows with it."""
    from rheoscope.report.findings import findings, findings_dataset
    from rheoscope.report.story import STORY_ANALYSES, story_dataset

    datasets = dict(results.datasets)
    if len(datasets) > 1 and results.has_nulls:
        datasets["findings"] = findings_dataset(*findings(results))
    if results.trace is not None and results.has_run(*STORY_ANALYSES):
        datasets["story"] = story_dataset(results)
        datasets |= {} if results.card is None else {"card": results.card}
    return datasets
