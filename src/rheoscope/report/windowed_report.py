"""A long text in pieces: each is asked what a command asks, and what they say is joined as `over_texts` joins texts."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from rheoscope.catalogue import analysis_by_name
from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import AnsweredQuestion, Block, Questions
from rheoscope.report import field_blocks, run_report, text_blocks
from rheoscope.report.analysis_runs import Progress, Request, Subject, run_analyses
from rheoscope.report.console import console
from rheoscope.report.long_texts import TextWindows
from rheoscope.report.page import Page
from rheoscope.report.progress_bars import progress_bar
from rheoscope.report.report_page import add_blocks
from rheoscope.report.report_plans import Options, ReportPlan
from rheoscope.report.run_report import OutputFiles
from rheoscope.report.terminal import Terminal
from rheoscope.report.verdicts import QUESTIONS, Question, Verdict
from rheoscope.running.over_texts import summarise_texts
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model, Text
from rheoscope.space.results import Results

ControlFactories = Sequence[Callable[[], Model]]
WINDOWS_NOTE = "Means over pieces; their intervals and every other number are in --json, --csv and --html."
TextOptions = Callable[[Text], Options]
"""What is asked of a text besides, for its own sake: the same text elsewhere."""


def no_text_options(input_text: Text) -> Options:
    """What most commands ask besides."""
    return {}


def run_on_windows(
    plan: ReportPlan,
    model: Model,
    windows: TextWindows | None,
    options: Options,
    files: OutputFiles,
    fast: bool = False,
    explain: bool = False,
    control_factories: ControlFactories = (),
    text_options: TextOptions = no_text_options,
) -> None:
    """One command on a text, or on its pieces one after the other; on weights alone where there is none."""
    if windows is None or len(windows.texts) == 1:
        input_text = None if windows is None else windows.texts[0]
        all_options = {**options, **({} if input_text is None else text_options(input_text))}
        run_report.run_report(plan, model, input_text, all_options, files, fast, explain, control_factories)
        return
    terminal = Terminal(console(), [], explain)
    terminal.print_line(text_blocks.model_line(Results(model.view, model.token_strings, None)), "dim")
    terminal.print_line(windows.description)
    window_results = run_windows(plan, model, windows, options, fast, control_factories, text_options)
    results = run_report.with_cli_advice(merge_windows(window_results))
    if plan.required in results.skipped:
        raise RheoscopeError(results.skipped[plan.required])
    blocks, terminal_blocks = (
        window_blocks(window_results, results),
        window_blocks(window_results, results, plan.required),
    )
    lead = f"{text_blocks.model_line(results)}. {windows.description}."
    page = add_blocks(Page(plan.title(window_results[0]), lead), [*blocks, text_blocks.provenance_block(results)])
    messages = run_report.write_files(results.datasets, page.save if files.wants_page else None, files)
    for block in terminal_blocks:
        terminal.print_block(block)
    terminal.print_line(WINDOWS_NOTE, "dim")
    terminal.print_skipped(results)
    terminal.print_files(messages)
    run_report.raise_failures(results)


def refuse_windows(windows: TextWindows | None, option: str) -> None:
    """Refuse an option that is about one text where there are several pieces."""
    if windows is not None and len(windows.texts) > 1:
        raise RheoscopeError(f"{option} and --window exclude each other; type one of them, or --first N")


def window_requests(plan: ReportPlan, options: Options, is_first: bool) -> list[Request]:
    """What a piece is asked: of the main job what its questions need; the first one also what weights alone answer."""
    requests = plan.requests(options)
    needed_names = {name for question in QUESTIONS for name in question.needs}
    if needed_names <= {request.name for request in requests}:
        requests = [request for request in requests if request.name in needed_names]
    return [request for request in requests if is_first or analysis_by_name(request.name).reads_text]


def run_windows(
    plan: ReportPlan,
    model: Model,
    windows: TextWindows,
    options: Options,
    fast: bool,
    control_factories: ControlFactories,
    text_options: TextOptions,
) -> list[Results]:
    """What every piece says."""
    window_results: list[Results] = []
    with progress_bar() as on_progress:
        for index, ids in enumerate(windows.texts):
            subject = Subject(model, ids, model.trace(ids))
            requests = window_requests(plan, {**options, **text_options(ids)}, is_first=index == 0)

            def on_window_progress(analysis_name: str, index: int = index) -> Progress:
                return on_progress(f"piece {index + 1} of {len(windows.texts)}: {analysis_name}")

            window_results.append(
                run_analyses(
                    subject,
                    requests,
                    not fast,
                    run_report.control_subjects(control_factories, ids),
                    on_progress=on_window_progress,
                )
            )
    return window_results


def merge_windows(window_results: Sequence[Results]) -> Results:
    """What the pieces say together; an analysis that one of them has no answer to is left out, with the reason."""
    first = window_results[0]
    skipped = {
        key: f"{results.skipped[key]} (piece {number} of {len(window_results)})"
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
    return replace(first, trace=None, datasets=merged, skipped=skipped, failed_keys=failed_keys, controls=())


def window_blocks(window_results: Sequence[Results], results: Results, required: str = "") -> list[Block]:
    """The seven questions, where everything they need was asked; else every number, from its fields: of all analyses, or of one
    that `must` be told, and the others in brief."""
    if all(window_results[0].has_run(*question.needs) for question in QUESTIONS):
        note = "Each piece is answered by itself."
        return [
            Questions(
                f"Seven questions to {len(window_results)} pieces",
                [count_answers(question, window_results) for question in QUESTIONS],
                note,
            )
        ]
    full_keys = [required] if required else list(results.datasets)
    block_functions = {
        key: field_blocks.blocks if key in full_keys else field_blocks.brief_blocks for key in results.datasets
    }
    return [block for key, make_blocks in block_functions.items() for block in make_blocks(results, key)]


def count_answers(question: Question, window_results: Sequence[Results]) -> AnsweredQuestion:
    """How many pieces give which answer, and the number behind it from the least to the largest."""
    verdicts = [question.verdict(results) for results in window_results]
    counts = Counter(verdict.answer for verdict in verdicts)
    (most_common, count), *other_answers = counts.most_common()
    line = f"{most_common} in {count} of {len(window_results)} pieces" + "".join(
        f", {answer} in {n}" for answer, n in other_answers
    )
    return AnsweredQuestion(question.question, most_common, f"{line}{_statement_ranges(verdicts)}.", question.deeper)


def _statement_ranges(verdicts: Sequence[Verdict]) -> str:
    """The numbers that answers rest on, over the pieces."""
    parts = []
    for name in dict.fromkeys(statement.analysis for verdict in verdicts for statement in verdict.statements):
        statements = [
            statement for verdict in verdicts for statement in verdict.statements if statement.analysis == name
        ]
        mean, null = (
            sum(getattr(statement, field) for statement in statements) / len(statements) for field in ("value", "null")
        )
        low, high = (format_number(extreme(statement.value for statement in statements)) for extreme in (min, max))
        parts.append(f"{name} {format_number(mean)} in the mean, {low} to {high}, chance {format_number(null)}")
    return f"; {'; '.join(parts)}" if parts else ""
