"""All definitions, theorems and laws with their measured violation, as a table, as JSON and in the docs."""

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

from rheoscope.attention.theorem import Theorem
from rheoscope.attention.theorems import THEOREMS as ATTENTION_THEOREMS
from rheoscope.attention.theorems import permutation_error
from rheoscope.files import check_outputs, write_file
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.models.theorems import THEOREMS as MODEL_THEOREMS
from rheoscope.picture.blocks import Cell, Lines, Table, to_cells
from rheoscope.report.console import console
from rheoscope.report.json_file import write_json
from rheoscope.report.terminal import Terminal
from rheoscope.report.theory_report import TOLERANCE
from rheoscope.shapes import RheoscopeError
from rheoscope.theory.experiments import dynamics

TABLE_MARKERS = "<!-- laws -->", "<!-- /laws -->"
"""The markers around the table in the docs."""


def largest_gap(experiment: str) -> float:
    """The largest relative difference between an experiment of the theory bench and theory."""
    return float(dynamics(experiment).gap.max())


def bench_theorem(item: str, statement: str, experiment: str) -> Theorem:
    return Theorem(item, statement, f"dynamics {experiment}", partial(largest_gap, experiment), TOLERANCE)


BENCH_THEOREMS = (
    bench_theorem(
        "4.4",
        Message("over a thousand layers, tokens become equal under softmax but not under shaped attention"),
        "shaped",
    ),
    bench_theorem(
        "5.1",
        Message("inner products of two maps approximate any relation, those of one map only symmetric similarities"),
        "relations",
    ),
    bench_theorem(
        "4.4",
        Message("at finite width, the covariances of tokens follow a stochastic differential equation"),
        "shaped_width",
    ),
    bench_theorem(
        "5.2", Message("metric attention with a narrow bandwidth is a heat kernel (diffusion with drift)"), "heat"
    ),
    bench_theorem(
        "5.3",
        Message("with Q = K = V = I, attention is a gradient flow whose energy rises at every step"),
        "energy",
    ),
)


def all_theorems() -> list[Theorem]:
    """All rows, sorted by section."""
    rows = [*ATTENTION_THEOREMS, *MODEL_THEOREMS, *BENCH_THEOREMS]
    return sorted(rows, key=lambda row: float(match[0]) if (match := re.match(r"[\d.]+", row.item)) else 0.0)


def measure_violations() -> list[tuple[Theorem, float]]:
    """All rows with their measured violation."""
    return [(row, row.measure()) for row in all_theorems()]


def is_kept(row: Theorem, violation: float) -> bool:
    return violation <= row.tolerance  # NaN is not


def law_table(measurements: list[tuple[Theorem, float]]) -> Table:
    """One row per statement: its law, its number, its violation and its tolerance."""
    rows = []
    for row, violation in measurements:
        violation_cell = Cell(f"{violation:.1e}", style="green" if is_kept(row, violation) else "red")
        rows.append([*to_cells([row.law, row.item, row.statement]), violation_cell, Cell(f"{row.tolerance:.0e}")])
    header = to_cells(
        [Message("law"), Message("number"), Message("statement"), Message("violation"), Message("tolerance")]
    )
    return Table(Message("Laws of attention"), header, rows, frozenset({0, 1, 2}))


def position_example() -> Message:
    """Why attention needs positions, in two numbers."""
    return Message(
        "Attention without positions is permutation-equivariant: six permuted tokens give the six permuted outputs "
        "(violation {without:.0e}). With sinusoidal positions they do not (violation {with_positions:.2f}).",
        without=permutation_error(False),
        with_positions=permutation_error(True),
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
    """The table of the docs, without measurements.

    >>> markdown_table().splitlines()[2]
    '| Theorem 1.1 | a row times Bᵀ is the row of its dot products with the rows of B | `product_of_rows` | 1e-09 |'
    """
    rows = [
        f"| {row.item} | {row.statement.replace('|', chr(92) + '|')} | `{row.law}` | {row.tolerance:.0e} |"
        for row in all_theorems()
    ]
    return "\n".join(["| where | statement | law | tolerance |", "|---|---|---|---|", *rows])


def insert_table(text: str) -> str:
    """A page with this table between the markers.

    >>> insert_table("a <!-- laws --> old <!-- /laws --> b").count("| Theorem 1.1 |")
    1
    """
    before, remainder = text.split(TABLE_MARKERS[0], 1)
    return (
        f"{before}{TABLE_MARKERS[0]}\n{markdown_table()}\n{TABLE_MARKERS[1]}{remainder.split(TABLE_MARKERS[1], 1)[1]}"
    )


def show_laws(json_file: Path | None) -> None:
    """Run `rheoscope attention --laws`: all statements with their violation. Raises if a law is broken."""
    check_outputs([] if json_file is None else [json_file])
    terminal, messages = Terminal(console(), []), []
    with console(stderr=True).status(render(Message("measuring all laws"))):
        measurements = measure_violations()
    if json_file is not None:
        messages.append(write_json({"laws": laws_to_json(measurements)}, json_file))
    terminal.print_block(law_table(measurements))
    terminal.print_block(Lines(Message("Example"), [position_example()]))
    terminal.print_files(messages)
    broken_laws = [row.law for row, violation in measurements if not is_kept(row, violation)]
    if broken_laws:
        raise RheoscopeError(
            Message("laws are broken beyond their tolerance: {laws} (see the table above)", laws=", ".join(broken_laws))
        )


if __name__ == "__main__":
    page_path = Path(sys.argv[1])
    page_text = insert_table(page_path.read_text(encoding="utf-8"))
    print(write_file(page_path, lambda temporary: temporary.write_text(page_text, encoding="utf-8")))
