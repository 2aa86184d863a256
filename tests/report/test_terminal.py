"""The terminal: blocks as soon as they can be told, numbers never cut, and texts that cannot do anything to it."""

import io
import re

import pytest
from rich.console import Console

import rheoscope as rs
from rheoscope.picture.blocks import Cell, Drawing, Facts, Lines, Table, Tokens
from rheoscope.report import layer_table
from rheoscope.report.analysis_runs import Subject, run_analyses
from rheoscope.report.report_plans import FIRST_ANALYSES, REPORTS, Section, report_of_analysis
from rheoscope.report.terminal import WIDE_COLUMNS, Terminal, fit_columns
from rheoscope.report.verdicts import QUESTIONS
from rheoscope.space.results import Results
from tests.pictures.cases import drawn
from tests.report.cases import TEXT, answered, model, small, told

ROWS = [[Cell("L0"), Cell("12345.678", small_text=".25"), Cell("-0.5"), Cell("many words " * 9)]]
WORDY = Table("A heading", [Cell("layer"), Cell("n", "a number"), Cell("m"), Cell("what")], ROWS, frozenset({0, 3}))


def terminal(width: int = 80, job: str | None = None, explain: bool = False) -> Terminal:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    return Terminal(console, [] if job is None else REPORTS[job].sections, explain)


def said(one: Terminal) -> str:
    assert isinstance(one.console.file, io.StringIO)
    return one.console.file.getvalue()


def test_a_block_is_printed_as_soon_as_what_it_needs_is_known() -> None:
    """The main job, heard as it is asked: questions are answered in their order, each once it and those before it can be."""
    one, seen = terminal(job="flow"), {}

    def hear(so_far: Results) -> None:
        one.print_ready(so_far)
        seen[[*so_far.datasets, *so_far.skipped][-1]] = said(one)

    run_analyses(
        Subject(model(), TEXT, model().trace(TEXT)), REPORTS["flow"].requests({}), draw_nulls=False, on_result=hear
    )
    needed = [max(one.needs, key=FIRST_ANALYSES.index) for one in QUESTIONS]
    firsts = {
        **{one.question: max(needed[: at + 1], key=FIRST_ANALYSES.index) for at, one in enumerate(QUESTIONS)},
        "How each layer moves the cloud": "trajectory",
        "Prediction after each layer": "trajectory",
        "Heads as operators": "operators",
        "Other significant findings": "operators",
    }
    for heading, name in firsts.items():
        assert next(after for after, text in seen.items() if heading in text) == name
        assert said(one).count(heading) == 1
    assert one.pending_sections == []


OPTIONS = {
    "flow": {},
    "covers": {"draws": 2},
    "surgery": {"M": "symmetric"},
    "reverse": {},
    "operators": {"text": TEXT},
}


@pytest.mark.parametrize("job", REPORTS)
def test_what_is_told_early_is_what_the_end_would_tell(job: str) -> None:
    """No block is told before all that stands in it is known, and none is forgotten."""
    one, early = terminal(job=job), []
    one.print_block = early.append  # type: ignore[method-assign]
    answers = run_analyses(
        Subject(small(), TEXT, small().trace(TEXT)), REPORTS[job].requests(OPTIONS[job]), on_result=one.print_ready
    )
    late = [block for told in REPORTS[job].sections if not told.page_only for block in told.blocks(answers)]
    assert early == late
    assert len(late) > 1
    assert one.pending_sections == []


def test_blocks_stay_in_their_order() -> None:
    """A later block that could be told waits for an earlier one."""
    tells = (
        Section(("energy",), lambda _: [Lines("first", [])]),
        Section(("readout",), lambda _: [Lines("second", [])]),
    )
    one = terminal()
    one.pending_sections = list(tells)
    so_far = Results(model().view, model().token_strings, None)
    one.print_ready(so_far.with_result("readout", told().datasets["readout"]))
    assert said(one) == ""
    one.print_ready(
        so_far.with_result("readout", told().datasets["readout"]).with_failure("energy", rs.RheoscopeError("no text"))
    )
    assert said(one).split() == ["first", "second"]


def test_what_is_aside_is_for_pages() -> None:
    one = terminal()
    aside = Section((), lambda _: [Lines("aside", ["never"])], page_only=True)
    assert Terminal(one.console, [aside]).pending_sections == []
    for block in (Drawing(drawn("trajectory")), Tokens("t", ["a"], ["b"], frozenset()), Facts("f", {"a": "b"})):
        one.print_block(block)
    assert said(one) == ""


@pytest.mark.parametrize("width", [24, 40, 80, 200])
def test_numbers_are_never_cut_and_words_are_folded(width: int) -> None:
    one = terminal(width)
    one.print_block(WORDY)
    for whole in ("A heading", "L0", "12345.678", "-0.5", *["many"] * 9):
        assert whole in said(one)
    assert said(one).count("many") == said(one).count("words") == 9
    assert max(map(len, said(one).splitlines())) <= width


@pytest.mark.parametrize("width", [30, 60, 100])
def test_every_number_of_the_main_table_stands_there_at_any_width(width: int) -> None:
    one, (table,) = terminal(width), layer_table.blocks(told())
    assert isinstance(table, Table)
    one.print_block(table)
    words = said(one).split()
    for row in table.rows:
        for cell in row:
            assert cell.text in words


def test_columns_that_do_not_fit_stand_below_with_the_names_of_rows() -> None:
    groups = fit_columns(WORDY, 24, is_wide=False)
    assert [group[0] for group in groups] == [0] * len(groups)
    assert [at for group in groups for at in group[1:]] == [1, 2, 3]
    assert fit_columns(WORDY, 200) == [[0, 1, 2, 3]]


def test_nulls_stand_where_there_is_room() -> None:
    for width in (WIDE_COLUMNS, WIDE_COLUMNS - 1):
        one, (table,) = terminal(width), layer_table.blocks(told())
        one.print_block(table)
        assert ("small: mean of the null" in said(one)) == (width == WIDE_COLUMNS)
        one.print_block(WORDY)
        assert ("12345.678  .25" in said(one)) == (width == WIDE_COLUMNS)


def test_columns_are_explained_on_demand() -> None:
    for explain in (False, True):
        one = terminal(explain=explain)
        one.print_block(WORDY)
        assert ("n: a number" in said(one)) == explain


NASTY = "\x1b[31mred\x1b[0m [bold]b[/bold] \r\x08 [/nothing]"


def test_a_text_can_neither_colour_nor_move_nor_mark_up() -> None:
    one = terminal(400)
    answers = answered(report_of_analysis("massive_tokens"), NASTY)
    one.print_header(answers)
    one.print_heading(NASTY)
    one.print_block(Lines(NASTY, [NASTY]))
    one.print_block(Table(NASTY, [Cell(NASTY)], [[Cell(NASTY, NASTY, NASTY)]], small_caption=NASTY, note=NASTY))
    one.print_skipped(answers.with_failure("some", rs.RheoscopeError(NASTY)))
    assert re.findall(r"[\x00-\x09\x0b-\x1f]", said(one)) == []
    assert said(one).count("[bold]b[/bold]") >= 8


def test_the_beginning_names_the_model_and_the_text_and_the_end_what_is_missing() -> None:
    one = terminal(300)
    one.print_header(told("a"))
    one.print_skipped(told("a"))
    assert "the default model · 6 layers, 4 heads, width 256 · exact on " in said(one)
    assert "2 tokens: <|endoftext|> a" in said(one)
    assert "• clusters was skipped: this analysis needs at least 3 tokens" in said(one)
    whole = terminal(300)
    whole.print_skipped(told())
    assert said(whole) == ""
