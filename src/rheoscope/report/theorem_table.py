"""Every definition, theorem and law of the maths of attention with its violation, as a table, as JSON and on its page."""

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

from rheoscope.attention.theorems import THEOREMS as OF_ATTENTION
from rheoscope.attention.theorems import Theorem, shuffled_difference
from rheoscope.files import check_outputs, write_file
from rheoscope.models.theorems import THEOREMS as OF_MODELS
from rheoscope.picture.blocks import Cell, Lines, Table, cells
from rheoscope.report.console import console
from rheoscope.report.json_file import write_json
from rheoscope.report.terminal import Terminal
from rheoscope.report.theory_report import TOLERANCE
from rheoscope.shapes import RheoscopeError
from rheoscope.theory.experiments import dynamics

MARKS = "<!-- laws -->", "<!-- /laws -->"
"""Between them stands the table on its page."""


def largest_gap(experiment: str) -> float:
    """The largest gap of an experiment of the theory bench to what theory gives."""
    return float(dynamics(experiment).gap.max())


def on_the_bench(item: str, statement: str, experiment: str) -> Theorem:
    return Theorem(item, statement, f"dynamics {experiment}", partial(largest_gap, experiment), TOLERANCE)


OF_THE_BENCH = (
    on_the_bench("4.4", "a thousand layers: softmax makes tokens alike, shaped attention does not", "shaped"),
    on_the_bench(
        "5.1", "inner products of two maps approximate any relation, of one map only a similarity", "relations"
    ),
    on_the_bench("4.4", "at finite width, covariances of tokens follow a stochastic equation", "shaped_width"),
    on_the_bench("5.2", "metric attention of narrow bandwidth is a heat kernel: diffusion with drift", "heat"),
    on_the_bench("5.3", "attention as a gradient flow: with Q = K = V = I an energy rises at every step", "energy"),
)


def theorems() -> list[Theorem]:
    """All rows in the order of the document: definitions and theorems of section 2 first."""
    rows = [*OF_ATTENTION, *OF_MODELS, *OF_THE_BENCH]
    return sorted(rows, key=lambda row: float(found[0]) if (found := re.match(r"[\d.]+", row.item)) else 0.0)


def measured() -> list[tuple[Theorem, float]]:
    """Every row with its violation, here and now."""
    return [(row, row.measure()) for row in theorems()]


def kept(row: Theorem, violation: float) -> bool:
    return violation <= row.tolerance  # NaN is not


def terminal_table(found: list[tuple[Theorem, float]]) -> Table:
    """A row a statement: where it stands, its law, by how much it is off here, and by how much it may be."""
    rows = []
    for row, violation in found:
        off = Cell(f"{violation:.1e}", style="green" if kept(row, violation) else "red")
        rows.append([*cells([row.law, row.item, row.statement]), off, Cell(f"{row.tolerance:.0e}")])
    header = cells(["law", "where", "statement", "off by", "at most"])
    return Table("Laws of attention", header, rows, frozenset({0, 1, 2}))


def example() -> str:
    """Why positions are needed, in two numbers."""
    without, placed = shuffled_difference(False), shuffled_difference(True)
    return (
        "Hence positions: six tokens in the order 3 0 5 1 4 2 give the same six outputs, in that order "
        f"(off by {without:.0e}); with a sine table added to them they give others (off by {placed:.2f})."
    )


def as_json(found: list[tuple[Theorem, float]]) -> list[dict[str, Any]]:
    return [
        {
            "where": row.item,
            "statement": row.statement,
            "law": row.law,
            "violation": violation,
            "tolerance": row.tolerance,
        }
        for row, violation in found
    ]


def as_rows() -> str:
    """The table of the page: all but what is measured.

    >>> as_rows().splitlines()[2]
    '| Theorem 1.1 | a row times Bᵀ is the row of its scalar products with the rows of B | `product_of_rows` | 1e-09 |'
    """
    rows = [
        f"| {row.item} | {row.statement.replace('|', chr(92) + '|')} | `{row.law}` | {row.tolerance:.0e} |"
        for row in theorems()
    ]
    return "\n".join(["| where | statement | law | tolerance |", "|---|---|---|---|", *rows])


def with_rows(text: str) -> str:
    """A page whose table between the marks is this one.

    >>> with_rows("a <!-- laws --> old <!-- /laws --> b").count("| Theorem 1.1 |")
    1
    """
    before, rest = text.split(MARKS[0], 1)
    return f"{before}{MARKS[0]}\n{as_rows()}\n{MARKS[1]}{rest.split(MARKS[1], 1)[1]}"


def show(json_file: Path | None) -> None:
    """What `rheoscope attention --laws` does: every statement with its violation; fails where one is broken."""
    check_outputs([] if json_file is None else [json_file])
    terminal, said = Terminal(console(), []), []
    with console(stderr=True).status("measuring every law"):
        found = measured()
    if json_file is not None:
        said.append(write_json({"laws": as_json(found)}, json_file))
    terminal.show(terminal_table(found))
    terminal.show(Lines("What follows", [example()]))
    terminal.files(said)
    broken = [row.law for row, violation in found if not kept(row, violation)]
    if broken:
        raise RheoscopeError(f"{', '.join(broken)} is broken by more than rounding; the table above says by how much")


if __name__ == "__main__":
    page = Path(sys.argv[1])
    told = with_rows(page.read_text(encoding="utf-8"))
    print(write_file(page, lambda temporary: temporary.write_text(told, encoding="utf-8")))
