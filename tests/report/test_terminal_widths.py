"""A narrow terminal shows every word and number that a wide one shows."""

import io
import re
from functools import cache
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from rheoscope.picture.blocks import Block
from rheoscope.report.analysis_runs import Subject, run_analyses
from rheoscope.report.layer_table import comparison_blocks
from rheoscope.report.report_plans import REPORTS
from rheoscope.report.terminal import WIDE_COLUMNS, Terminal
from rheoscope.space.results import Results
from tests.report.cases import small

TEXT = "The keys to the 中 are on the table"
OPTIONS: dict[str, Any] = {
    "covers": {"draws": 2},
    "surgery": {"M": "symmetric", "heads": [(1, 0)]},
    "reverse": {},
    "operators": {"raw": True},
}


@pytest.mark.parametrize("plan", ["flow", *OPTIONS])
def test_every_report_is_complete_at_every_width(plan: str) -> None:
    results = flow_results() if plan == "flow" else results_of(plan, OPTIONS[plan])
    sections = [section for section in REPORTS[plan].sections if not section.page_only]
    check_widths([block for section in sections for block in section.blocks(results)])


def test_the_comparison_of_two_texts_is_complete_at_every_width() -> None:
    check_widths(comparison_blocks(flow_results(), flow_results()))


@cache
def flow_results() -> Results:
    return results_of("flow", {}, draw_nulls=False)


def results_of(plan: str, options: dict[str, Any], draw_nulls: bool = True) -> Results:
    return run_analyses(Subject(small(), TEXT, small().trace(TEXT)), REPORTS[plan].all_requests(options), draw_nulls)


def check_widths(blocks: list[Block]) -> None:
    wide = words_of(print_blocks(blocks, WIDE_COLUMNS - 1))
    assert len(wide) > 20
    for width in (40, 60, 80):
        narrow = print_blocks(blocks, width)
        assert max(cell_len(line) for line in narrow.splitlines() if not line.startswith(("rheoscope ", "# "))) <= width
        assert wide <= words_of(narrow) | words_of(narrow.replace("\n", ""))  # some words are folded


def print_blocks(blocks: list[Block], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    for block in blocks:
        Terminal(console, []).print_block(block)
    return console.file.getvalue()  # type: ignore[attr-defined]


def words_of(text: str) -> set[str]:
    """The words and numbers of a text."""
    return set(re.findall(r"[\w.κ−‖·-]+", text))
