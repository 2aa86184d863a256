"""The table of theorems is up to date in the docs, every law holds, and a broken law raises."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from rheoscope.attention.laws import LAWS
from rheoscope.attention.theorems import THEOREMS, permutation_error
from rheoscope.models.theorems import THEOREMS as OF_MODELS
from rheoscope.report import theorem_table as report
from rheoscope.report.terminal import Terminal
from rheoscope.shapes import RheoscopeError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "laws.md"
QUICK = [*THEOREMS, *OF_MODELS]
"""All rows except those of the theory bench, which has its own tests."""


def test_the_docs_page_has_every_row() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert report.insert_table(text) == text, "type python -m rheoscope.report.theorem_table docs/guide/laws.md"


@pytest.mark.parametrize("row", QUICK, ids=lambda row: row.law)
def test_every_law_holds(row: report.Theorem) -> None:
    state = torch.get_rng_state()
    assert row.measure() <= row.tolerance
    assert torch.equal(torch.get_rng_state(), state)


def test_every_item_of_the_document_has_a_row() -> None:
    items = {part.strip() for row in report.all_theorems() for part in row.item.split(",")}
    required_items = {
        "Theorem 1.1",
        "Theorem 1.2",
        "Theorem 2",
        "Theorem 3.1",
        "Definition 1",
        "Definition 2",
        "Definition 3",
    }
    sections = {"2.3", *(f"3.{c}" for c in range(1, 6)), *(f"{a}.{b}" for a in (4, 5) for b in range(1, 5))}
    assert required_items | {"Definition 4", "Theorem 3.2"} | {"3.3", "3.4"} | sections <= items


def test_law_names_are_unique() -> None:
    names = [row.law for row in report.all_theorems()]
    assert len(set(names)) == len(names)
    assert {"permutation", "rows_sum_to_one", "gram_psd"} <= set(names) & set(LAWS)


def test_a_narrow_terminal_shows_complete_numbers() -> None:
    console = Console(width=80, highlight=False)
    with console.capture() as capture:
        Terminal(console, []).print_block(report.law_table([(row, 2e-16) for row in report.all_theorems()]))
    assert capture.get().count("2.0e-16") == len(report.all_theorems())
    assert capture.get().count("2e-02") == len(report.BENCH_THEOREMS)


def test_only_positions_break_permutation_equivariance() -> None:
    assert permutation_error(False) < 1e-12 < 1e-2 < permutation_error(True)
    assert "six permuted tokens give the six permuted outputs" in report.position_example()


def test_everything_is_printed_and_written_and_a_broken_law_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = THEOREMS[0]
    monkeypatch.setattr(report, "all_theorems", lambda: [row])
    report.show_laws(tmp_path / "laws.json")
    rows = json.loads((tmp_path / "laws.json").read_text(encoding="utf-8"))["laws"]
    assert rows[0]["law"] == "product_of_rows"
    assert rows[0]["violation"] <= rows[0]["tolerance"]
    assert "Theorem 1.1" in capsys.readouterr().out
    for violation in (0.1, float("nan")):
        monkeypatch.setattr(report, "all_theorems", lambda value=violation: [replace(row, measure=lambda: value)])
        with pytest.raises(RheoscopeError, match="broken beyond their tolerance: product_of_rows"):
            report.show_laws(None)
