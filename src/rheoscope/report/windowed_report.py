"""A report on a long text in windows: every window is analysed, and the results are summarised over windows.

A text in one window is the usual case, so what only several windows need is imported inside functions.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from rheoscope.catalogue import analysis_by_name
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.picture.blocks import Block
from rheoscope.report import run_report, text_blocks
from rheoscope.report.analysis_runs import Progress, Request, Subject, run_analyses
from rheoscope.report.console import console
from rheoscope.report.long_texts import TextWindows
from rheoscope.report.page import Page
from rheoscope.report.progress_bars import progress_bar
from rheoscope.report.report_plan import Options, ReportPlan
from rheoscope.report.run_report import OutputFiles
from rheoscope.report.terminal import Terminal
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Text
from rheoscope.space.results import Results
from rheoscope.statistics.intervals import MIN_UNITS, too_few_units

WINDOWS_NOTE = Message("Means over windows. Their intervals and all other numbers are in --json, --csv and --html.")
TextOptions = Callable[[Text], Options]
"""Options that depend on the text, such as its trace in an untrained control."""


def no_text_options(input_text: Text) -> Options:
    """No further options."""
    return {}


def run_on_windows(
    plan: ReportPlan,
    model: RunnableModel,
    windows: TextWindows | None,
    options: Options,
    files: OutputFiles,
    fast: bool = False,
    explain: bool = False,
    text_options: TextOptions = no_text_options,
    full: bool = False,
) -> None:
    """Run a report on one text, on its windows one after the other, or on weights alone."""
    if windows is None or len(windows.texts) == 1:
        input_text = None if windows is None else windows.texts[0]
        all_options = {**options, **({} if input_text is None else text_options(input_text))}
        run_report.run_report(plan, model, input_text, all_options, files, fast, explain, full)
        return
    from rheoscope.report.report_page import add_blocks

    terminal = Terminal(console(), [], explain)
    terminal.print_line(text_blocks.model_line(Results(model.view, model.token_strings, None)), "dim")
    terminal.print_line(windows.description)
    window_results = run_windows(plan, model, windows, options, fast, text_options)
    results = replace(merge_windows(window_results), surface="shell")
    if plan.required in results.skipped:
        raise results.skipped[plan.required]
    blocks, terminal_blocks = (
        window_blocks(window_results, results),
        window_blocks(window_results, results, plan.required),
    )
    lead = Message("{model}. {windows}.", model=text_blocks.model_line(results), windows=windows.description)
    page = add_blocks(Page(plan.title(window_results[0]), lead), [*blocks, text_blocks.provenance_block(results)])
    messages = run_report.write_files(results.datasets, page.save if files.wants_page else None, files)
    for block in terminal_blocks:
        terminal.print_block(block)
    terminal.print_line(WINDOWS_NOTE, "dim")
    if len(window_results) < MIN_UNITS:
        terminal.print_line(too_few_units(Message("windows"), len(window_results)), "dim")
    terminal.print_skipped(results)
    terminal.print_files(messages)
    run_report.raise_failures(results)


def refuse_windows(windows: TextWindows | None, option: str) -> None:
    """Raise if an option for a single text is combined with windows."""
    if windows is not None and len(windows.texts) > 1:
        problem = Message("{option} and {other} exclude each other", option=option, other="--window")
        raise RheoscopeError(problem, Advice("", "--first N"))


def window_requests(plan: ReportPlan, options: Options, is_first: bool) -> list[Request]:
    """The analyses of one window. For the report on a text: those of the story. Weights are analysed once."""
    from rheoscope.report.story import STORY_ANALYSES

    requests = plan.requests(options)
    needed_names = set(STORY_ANALYSES)
    if needed_names <= {request.name for request in requests}:
        requests = [request for request in requests if request.name in needed_names]
    return [request for request in requests if is_first or analysis_by_name(request.name).reads_text]


def run_windows(
    plan: ReportPlan,
    model: RunnableModel,
    windows: TextWindows,
    options: Options,
    fast: bool,
    text_options: TextOptions,
) -> list[Results]:
    """The results of every window."""
    window_results: list[Results] = []
    with progress_bar() as on_progress:
        for index, ids in enumerate(windows.texts):
            subject = Subject(model, ids, model.trace(ids))
            requests = window_requests(plan, {**options, **text_options(ids)}, is_first=index == 0)

            def on_window_progress(analysis_name: str, index: int = index) -> Progress:
                total = len(windows.texts)
                return on_progress(
                    Message(
                        "window {number} of {total}: {analysis}", number=index + 1, total=total, analysis=analysis_name
                    )
                )

            window_results.append(
                run_analyses(
                    subject,
                    requests,
                    not fast,
                    on_progress=on_window_progress,
                )
            )
    return window_results


def merge_windows(window_results: Sequence[Results]) -> Results:
    """Means over the windows. An analysis that has no result in some window is skipped, with the reason."""
    from rheoscope.running.over_texts import summarise_texts

    first = window_results[0]
    skipped = {
        key: _in_window(results.skipped[key], number, len(window_results))
        for number, results in reversed(list(enumerate(window_results, 1)))
        for key in results.skipped
    }
    merged = {}
    for key, dataset in first.datasets.items():
        datasets = [results.datasets[key] for results in window_results if key in results.datasets]
        if len(datasets) == len(window_results):
            merged[key] = summarise_texts(datasets)
        elif not analysis_by_name(key.split()[0]).reads_text:
            merged[key] = dataset
    failed_keys = tuple(dict.fromkeys(key for results in window_results for key in results.failed_keys))
    return replace(first, trace=None, datasets=merged, skipped=skipped, failed_keys=failed_keys)


def _in_window(error: RheoscopeError, number: int, total: int) -> RheoscopeError:
    reason = Message("{reason} (window {number} of {total})", reason=error.message, number=number, total=total)
    return RheoscopeError(reason, error.advice)


def window_blocks(window_results: Sequence[Results], results: Results, required: str = "") -> list[Block]:
    """The fields of all results. If an analysis is `required`, the others are shown in brief."""
    from rheoscope.report import field_blocks

    full_keys = [required] if required else list(results.datasets)
    block_functions = {
        key: field_blocks.blocks if key in full_keys else field_blocks.brief_blocks for key in results.datasets
    }
    return [block for key, make_blocks in block_functions.items() for block in make_blocks(results, key)]
