"""The terminal: sections are printed when ready, numbers are complete, and text has no side effects."""

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

import rheoscope as rs
from rheoscope.messages.catalogue import use_language
from rheoscope.messages.message import Message
from rheoscope.picture.blocks import Cell, Drawing, Facts, Lines, Table, Tokens
from rheoscope.picture.token_labels import display_token
from rheoscope.report import layer_table
from rheoscope.report.analysis_runs import Subject, run_analyses
from rheoscope.report.report_plan import Section
from rheoscope.report.report_plans import REPORTS, report_of_analysis
from rheoscope.report.report_sections import text_analyses
from rheoscope.report.story import TEXT_LINES
from rheoscope.report.terminal import WIDE_COLUMNS, Terminal, fit_columns, wrap_sentence
from rheoscope.space.results import Results
from tests.pictures.cases import example_picture
from tests.report.cases import TEXT, flow_results, model, report_results, small

ROWS = [[Cell("L0"), Cell("12345.678", small_text=".25"), Cell("-0.5"), Cell("many words " * 9)]]
WORDY = Table("A heading", [Cell("layer"), Cell("n", "a number"), Cell("m"), Cell("what")], ROWS, frozenset({0, 3}))


def terminal(width: int = 80, job: str | None = None, explain: bool = False) -> Terminal:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    return Terminal(console, [] if job is None else REPORTS[job].sections, explain)


def output(printer: Terminal) -> str:
    assert isinstance(printer.console.file, io.StringIO)
    return printer.console.file.getvalue()


def test_a_section_is_printed_once_its_analyses_have_run() -> None:
    """Lines of the story are printed in their order, each once it and those before it can be told."""
    printer, outputs = terminal(job="flow"), {}

    def on_result(so_far: Results) -> None:
        printer.print_ready(so_far)
        outputs[[*so_far.datasets, *so_far.skipped][-1]] = output(printer)

    run_analyses(Subject(small(), TEXT, small().trace(TEXT)), REPORTS["flow"].all_requests({}), on_result=on_result)
    order = text_analyses()
    last_needs = [max(line.needs, key=order.index) for line in TEXT_LINES]
    firsts = {
        **{f"\n{line.title} ": max(last_needs[: index + 1], key=order.index) for index, line in enumerate(TEXT_LINES)},
        "How each layer moves the cloud": "clusters",
        "Prediction after each layer": "clusters",
        "Heads as operators": "operators",
        "Significant findings": "agreement",
    }
    for heading, name in firsts.items():
        first = next(after for after, text in outputs.items() if heading in text)
        assert order.index(first) >= order.index(name), heading
        assert output(printer).count(heading) == 1, heading
    assert printer.pending_sections == []


OPTIONS = {
    "flow": {},
    "covers": {"draws": 2},
    "patch": {"edges": 2, "tries": 2, "top": 1},
    "surgery": {"M": "symmetric"},
    "reverse": {},
    "operators": {"text": TEXT},
}


@pytest.mark.parametrize("job", REPORTS)
def test_sections_printed_early_equal_those_printed_at_the_end(job: str) -> None:
    """No section is printed before its analyses have run, and none is missing."""
    printer, early = terminal(job=job), []
    printer.print_block = early.append  # type: ignore[method-assign]
    requests = REPORTS[job].all_requests if job == "flow" else REPORTS[job].requests
    results = run_analyses(
        Subject(small(), TEXT, small().trace(TEXT)),
        requests(OPTIONS[job]),
        on_result=printer.print_ready,
    )
    late = [block for section in REPORTS[job].sections if not section.page_only for block in section.blocks(results)]
    assert early == late
    assert len(late) > 1
    assert printer.pending_sections == []


def test_sections_keep_their_order() -> None:
    """A section that is ready waits for those before it."""
    sections = (
        Section(("energy",), lambda _: [Lines("first", [])]),
        Section(("readout",), lambda _: [Lines("second", [])]),
    )
    printer = terminal()
    printer.pending_sections = list(sections)
    so_far = Results(model().view, model().token_strings, None)
    printer.print_ready(so_far.with_result("readout", flow_results().datasets["readout"]))
    assert output(printer) == ""
    printer.print_ready(
        so_far.with_result("readout", flow_results().datasets["readout"]).with_failure(
            "energy", rs.RheoscopeError("no text")
        )
    )
    assert output(printer).split() == ["first", "second"]


def test_page_only_sections_are_not_printed() -> None:
    printer = terminal()
    aside = Section((), lambda _: [Lines("aside", ["never"])], page_only=True)
    assert Terminal(printer.console, [aside]).pending_sections == []
    for block in (
        Drawing(example_picture("trajectory")),
        Tokens("t", ["a"], ["b"], frozenset()),
        Facts("f", {"a": "b"}),
    ):
        printer.print_block(block)
    assert output(printer) == ""


@pytest.mark.parametrize("width", [24, 40, 80, 200])
def test_numbers_are_never_truncated_and_text_is_folded(width: int) -> None:
    printer = terminal(width)
    printer.print_block(WORDY)
    for joined_output in ("A heading", "L0", "12345.678", "-0.5", *["many"] * 9):
        assert joined_output in output(printer)
    assert output(printer).count("many") == output(printer).count("words") == 9
    assert max(map(len, output(printer).splitlines())) <= width


@pytest.mark.parametrize("width", [30, 60, 100])
def test_the_layer_table_shows_every_number_at_any_width(width: int) -> None:
    printer, (table,) = terminal(width), layer_table.blocks(flow_results())
    assert isinstance(table, Table)
    printer.print_block(table)
    texts = output(printer).split()
    for row in table.rows:
        for cell in row:
            assert cell.text in texts


def test_columns_that_do_not_fit_are_printed_below() -> None:
    groups = fit_columns(WORDY, 24, is_wide=False)
    assert [group[0] for group in groups] == [0] * len(groups)
    assert [index for group in groups for index in group[1:]] == [1, 2, 3]
    assert fit_columns(WORDY, 200) == [[0, 1, 2, 3]]


def test_nulls_are_shown_in_wide_terminals() -> None:
    for width in (WIDE_COLUMNS, WIDE_COLUMNS - 1):
        printer, (table,) = terminal(width), layer_table.blocks(flow_results())
        printer.print_block(table)
        assert ("small: mean of the null" in output(printer)) == (width == WIDE_COLUMNS)
        printer.print_block(WORDY)
        assert ("12345.678  .25" in output(printer)) == (width == WIDE_COLUMNS)


def test_columns_are_explained_on_demand() -> None:
    for explain in (False, True):
        printer = terminal(explain=explain)
        printer.print_block(WORDY)
        assert ("n: a number" in output(printer)) == explain


NASTY = "\x1b[31mred\x1b[0m [bold]b[/bold] \r\x08 [/nothing]"


def test_control_characters_and_markup_have_no_effect() -> None:
    printer = terminal(400)
    results = report_results(report_of_analysis("massive_tokens"), NASTY)
    printer.print_header(results)
    printer.print_heading(NASTY)
    printer.print_block(Lines(NASTY, [NASTY]))
    printer.print_block(Table(NASTY, [Cell(NASTY)], [[Cell(NASTY, NASTY, NASTY)]], small_caption=NASTY, note=NASTY))
    printer.print_skipped(results.with_failure("some", rs.RheoscopeError(NASTY)))
    assert re.findall(r"[\x00-\x09\x0b-\x1f]", output(printer)) == []
    assert output(printer).count("[bold]b[/bold]") >= 8


def test_the_header_has_model_and_text_and_the_end_has_skipped_analyses() -> None:
    printer = terminal(300)
    printer.print_header(flow_results("a"))
    printer.print_skipped(flow_results("a"))
    assert "the default model · 6 layers, 4 heads, width 256 · exact on " in output(printer)
    assert "2 tokens: <|endoftext|> a" in output(printer)
    assert "• clusters was skipped: this analysis needs at least 3 tokens" in output(printer)
    joined_output = terminal(300)
    joined_output.print_skipped(flow_results())
    assert output(joined_output) == ""


def test_text_is_rendered_in_the_current_language() -> None:
    table = Table(Message("Model"), [Cell(Message("Model"))], [[Cell(display_token("Model"))]])
    printer = terminal()
    with use_language("zh"):
        printer.print_block(table)
    assert output(printer).split() == ["模型", "模型", "Model"]  # tokens are never translated


def test_a_number_and_its_percent_sign_are_on_one_line() -> None:
    sentence = "ranks {! ×3, 🚀 ×2} 91 % → 26 % of all pairs and 100 % at last"
    console = Console(file=io.StringIO(), width=80)
    for width in range(20, 60):
        lines = wrap_sentence(console, sentence, width).plain.split("\n")
        assert all(cell_len(line) <= width for line in lines)
        assert not any(line.startswith(("%", "×")) for line in lines)
        assert " ".join(lines) == sentence
