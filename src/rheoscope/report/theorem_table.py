"""Every definition, theorem and law of the maths of attention with its violation, as a table, as JSON and on its page."""

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

from rheoscope.attention.theorem import Theorem
from rheoscope.attention.theorems import THEOREMS as ATTENTION_THEOREMS
from rheoscope.attention.theorems import permutation_error
from rheoscope.files import check_outputs, write_file
from rheoscope.models.theorems import THEOREMS as MODEL_THEOREMS
from rheoscope.picture.blocks import Cell, Lines, Table, to_cells
from rheoscope.report.console import console
from rheoscope.report.json_file import write_json
from rheoscope.report.terminal import Terminal
from rheoscope.report.theory_report import TOLERANCE
from rheoscope.shapes import RheoscopeError
from rheoscope.theory.experiments import dynamics

TABLE_MARKERS = "<!-- laws -->", "<!-- /laws -->"
"""Between them stands the table on its page."""


def largest_gap(experiment: str) -> float:
    """The largest gap of an experiment of the theory bench to what theory gives."""
    return float(dynamics(experiment).gap.max())


def bench_theorem(item: str, statement: str, experiment: str) -> Theorem:
    return Theorem(item, statement, f"dynamics {experiment}", partial(largest_gap, experiment), TOLERANCE)


BENCH_THEOREMS = (
    bench_theorem("4.4", "a thousand layers: softmax makes tokens alike, shaped attention does not", "shaped"),
    bench_theorem(
        "5.1", "inner products of two maps approximate any relation, of one map only a similarity", "relations"
    ),
    bench_theorem("4.4", "at finite width, covariances of tokens follow a stochastic equation", "shaped_width"),
    bench_theorem("5.2", "metric attention of narrow bandwidth is a heat kernel: diffusion with drift", "heat"),
    bench_theorem("5.3", "attention as a gradient flow: with Q = K = V = I an energy rises at every step", "energy"),
)


def all_theorems() -> list[Theorem]:
    """All rows in the order of the document: definitions and theorems of section 2 first."""
    rows = [*ATTENTION_THEOREMS, *MODEL_THEOREMS, *BENCH_THEOREMS]
    return sorted(rows, key=lambda row: float(match[0]) if (match := re.match(r"[\d.]+", row.item)) else 0.0)


def measure_violations() -> list[tuple[Theorem, float]]:
    """Every row with its violation, here and now."""
    return [(row, row.measure()) for row in all_theorems()]


def is_kept(row: Theorem, violation: float) -> bool:
    return violation <= row.tolerance  # NaN is not


def law_table(measurements: list[tuple[Theorem, float]]) -> Table:
    """A row a statement: where it stands, its law, by how much it is off here, and by how much it may be."""
    rows = []
    for row, violation in measurements:
        violation_cell = Cell(f"{violation:.1e}", style="green" if is_kept(row, violation) else "red")
        rows.append([*to_cells([row.law, row.item, row.statement]), violation_cell, Cell(f"{row.tolerance:.0e}")])
    header = to_cells(["law", "where", "statement", "off by", "at most"])
    return Table("Laws of attention", header, rows, frozenset({0, 1, 2}))


def position_example() -> str:
    """Why positions are needed, in two numbers."""
    without_positions, with_positions = permutation_error(False), permutation_error(True)
    return (
        "Hence positions: six tokens in the order 3 0 5 1 4 2 give the same six outputs, in that order "
        f"(off by {without_positions:.0e}); with a sine table added to them they give others (off by {with_positions:.2f})."
    )


def laws_to_json(measurements: list[tuple[Theorem, float]]) -> list[dict[str, Any]]:
    return [
        {
            "where": row.item,
            "statement": row.statement,
            "law": row.law,
            "violation": violation,
            "tolerance": row.tolerance,
        }
        for row, violation in measurements
    ]


def markdown_table() -> str:
    """The table of the page: all but what is measured.

    >>> markdown_table().splitlines()[2]
    '| Theorem 1.1 | a row times Bᵀ is the row of its dot products with the rows of B | `product_of_rows` | 1e-09 |'
    """
    rows = [
        f"| {row.item} | {row.statement.replace('|', chr(92) + '|')} | `{row.law}` | {row.tolerance:.0e} |"
        for row in all_theorems()
    ]
    return "\n".join(["| where | statement | law | tolerance |", "|---|---|---|---|", *rows])


def insert_table(text: str) -> str:
    """A page whose table between the marks is this one.

    >>> insert_table("a <!-- laws --> old <!-- /laws --> b").count("| Theorem 1.1 |")
    1
    """
    before, remainder = text.split(TABLE_MARKERS[0], 1)
    return (
        f"{before}{TABLE_MARKERS[0]}\n{markdown_table()}\n{TABLE_MARKERS[1]}{remainder.split(TABLE_MARKERS[1], 1)[1]}"
    )


def show_laws(json_file: Path | None) -> None:
    """What `rheoscope attention --laws` does: every statement with its violation; fails where one is broken."""
    check_outputs([] if json_file is None else [json_file])
    terminal, messages = Terminal(console(), []), []
    with console(stderr=True).status("measuring every law"):
        measurements = measure_violations()
    if json_file is not None:
        messages.append(write_json({"laws": laws_to_json(measurements)}, json_file))
    terminal.print_block(law_table(measurements))
    terminal.print_block(Lines("What follows", [position_example()]))
    terminal.print_files(messages)
    broken_laws = [row.law for row, violation in measurements if not is_kept(row, violation)]
    if broken_laws:
        raise RheoscopeError(
            f"{', '.join(broken_laws)} is broken by more than rounding; the table above says by how much"
        )


if __name__ == "__main__":
    page_path = Path(sys.argv[1])
    page_text = insert_table(page_path.read_text(encoding="utf-8"))
    print(write_file(page_path, lambda temporary: temporary.write_text(page_text, encoding="utf-8")))
