"""The terminal: blocks as soon as they can be told, numbers never cut, and texts that cannot do anything to it."""

import io
import re

import pytest
from rich.console import Console

from rheoscope.picture.blocks import Cell, Drawing, Facts, Lines, Table, Tokens
from rheoscope.report import layer_table
from rheoscope.report.report_plans import FIRST, JOBS, Told, job_of
from rheoscope.report.run_analyses import Subject, ask
from rheoscope.report.terminal import WIDE, Terminal, fitting
from rheoscope.report.verdicts import QUESTIONS
from rheoscope.space.results import Answers
from tests.pictures.cases import drawn
from tests.report.cases import TEXT, answered, model, small, told

ROWS = [[Cell("L0"), Cell("12345.678", small=".25"), Cell("-0.5"), Cell("many words " * 9)]]
WORDY = Table("A heading", [Cell("layer"), Cell("n", "a number"), Cell("m"), Cell("what")], ROWS, frozenset({0, 3}))


def terminal(width: int = 80, job: str | None = None, explain: bool = False) -> Terminal:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    return Terminal(console, [] if job is None else JOBS[job].tells, explain)


def said(one: Terminal) -> str:
    assert isinstance(one.console.file, io.StringIO)
    return one.console.file.getvalue()


def test_a_block_is_printed_as_soon_as_what_it_needs_is_known() -> None:
    """The main job, heard as it is asked: questions are answered in their order, each once it and those before it can be."""
    one, seen = terminal(job="flow"), {}

    def hear(so_far: Answers) -> None:
        one.hear(so_far)
        seen[[*so_far.found, *so_far.left_out][-1]] = said(one)

    ask(Subject(model(), TEXT, model().trace(TEXT)), JOBS["flow"].asks({}), nulls=False, hear=hear)
    needed = [max(one.needs, key=FIRST.index) for one in QUESTIONS]
    firsts = {
        **{one.question: max(needed[: at + 1], key=FIRST.index) for at, one in enumerate(QUESTIONS)},
        "How each layer moves the cloud": "trajectory",
        "What each layer says comes next": "trajectory",
        "Heads as operators": "operators",
        "What else beat chance": "operators",
    }
    for heading, name in firsts.items():
        assert next(after for after, text in seen.items() if heading in text) == name
        assert said(one).count(heading) == 1
    assert one.waiting == []


OPTIONS = {
    "flow": {},
    "covers": {"draws": 2},
    "surgery": {"M": "symmetric"},
    "reverse": {},
    "operators": {"text": TEXT},
}


@pytest.mark.parametrize("job", JOBS)
def test_what_is_told_early_is_what_the_end_would_tell(job: str) -> None:
    """No block is told before all that stands in it is known, and none is forgotten."""
    one, early = terminal(job=job), []
    one.show = early.append  # type: ignore[method-assign]
    answers = ask(Subject(small(), TEXT, small().trace(TEXT)), JOBS[job].asks(OPTIONS[job]), hear=one.hear)
    late = [block for told in JOBS[job].tells if not told.aside for block in told.blocks(answers)]
    assert early == late
    assert len(late) > 1
    assert one.waiting == []


def test_blocks_stay_in_their_order() -> None:
    """A later block that could be told waits for an earlier one."""
    tells = (Told(("energy",), lambda _: [Lines("first", [])]), Told(("readout",), lambda _: [Lines("second", [])]))
    one = terminal()
    one.waiting = list(tells)
    so_far = Answers(model().view, model().words, None)
    one.hear(so_far.with_answer("readout", told().found["readout"]))
    assert said(one) == ""
    one.hear(so_far.with_answer("readout", told().found["readout"]).without("energy", "no text"))
    assert said(one).split() == ["first", "second"]


def test_what_is_aside_is_for_pages() -> None:
    one = terminal()
    aside = Told((), lambda _: [Lines("aside", ["never"])], aside=True)
    assert Terminal(one.console, [aside]).waiting == []
    for block in (Drawing(drawn("trajectory")), Tokens("t", ["a"], ["b"], frozenset()), Facts("f", {"a": "b"})):
        one.show(block)
    assert said(one) == ""


@pytest.mark.parametrize("width", [24, 40, 80, 200])
def test_numbers_are_never_cut_and_words_are_folded(width: int) -> None:
    one = terminal(width)
    one.show(WORDY)
    for whole in ("A heading", "L0", "12345.678", "-0.5", *["many"] * 9):
        assert whole in said(one)
    assert said(one).count("many") == said(one).count("words") == 9
    assert max(map(len, said(one).splitlines())) <= width


@pytest.mark.parametrize("width", [30, 60, 100])
def test_every_number_of_the_main_table_stands_there_at_any_width(width: int) -> None:
    one, (table,) = terminal(width), layer_table.blocks(told())
    assert isinstance(table, Table)
    one.show(table)
    words = said(one).split()
    for row in table.rows:
        for cell in row:
            assert cell.text in words


def test_columns_that_do_not_fit_stand_below_with_the_names_of_rows() -> None:
    groups = fitting(WORDY, 24, wide=False)
    assert [group[0] for group in groups] == [0] * len(groups)
    assert [at for group in groups for at in group[1:]] == [1, 2, 3]
    assert fitting(WORDY, 200) == [[0, 1, 2, 3]]


def test_nulls_stand_where_there_is_room() -> None:
    for width in (WIDE, WIDE - 1):
        one, (table,) = terminal(width), layer_table.blocks(told())
        one.show(table)
        assert ("small: what chance gives" in said(one)) == (width == WIDE)
        one.show(WORDY)
        assert ("12345.678  .25" in said(one)) == (width == WIDE)


def test_columns_are_explained_on_demand() -> None:
    for explain in (False, True):
        one = terminal(explain=explain)
        one.show(WORDY)
        assert ("n: a number" in said(one)) == explain


NASTY = "\x1b[31mred\x1b[0m [bold]b[/bold] \r\x08 [/nothing]"


def test_a_text_can_neither_colour_nor_move_nor_mark_up() -> None:
    one = terminal(400)
    answers = answered(job_of("massive_tokens"), NASTY)
    one.begin(answers)
    one.heading(NASTY)
    one.show(Lines(NASTY, [NASTY]))
    one.show(Table(NASTY, [Cell(NASTY)], [[Cell(NASTY, NASTY, NASTY)]], small=NASTY, note=NASTY))
    one.end(answers.without("some", NASTY))
    assert re.findall(r"[\x00-\x09\x0b-\x1f]", said(one)) == []
    assert said(one).count("[bold]b[/bold]") >= 8


def test_the_beginning_names_the_model_and_the_text_and_the_end_what_is_missing() -> None:
    one = terminal(300)
    one.begin(told("a"))
    one.end(told("a"))
    assert "the default model · 6 layers, 4 heads, width 256 · exact on " in said(one)
    assert "2 tokens: <|endoftext|> a" in said(one)
    assert "• clusters is left out: this needs at least 3 tokens" in said(one)
    whole = terminal(300)
    whole.end(told())
    assert said(whole) == ""
