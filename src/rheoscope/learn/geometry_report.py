"""`rheoscope learned`: how geometry formed, as a table in the terminal, as files, and as a page."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.learn.geometry_over_training import LEARNED, QUANTITIES, learned
from rheoscope.picture.blocks import Cell, Table
from rheoscope.picture.field_panels import field_title
from rheoscope.picture.picture import format_value
from rheoscope.report.console import console
from rheoscope.report.draw_result import picture_of
from rheoscope.report.page import Page
from rheoscope.report.run_report import OutputFiles, write_files
from rheoscope.report.terminal import Terminal

if TYPE_CHECKING:
    import xarray

NOTE = "Small: what chance gives in the same model, or equal weights. The look at step 0 is the untrained model, the control of all others."


def show_learned(run: Path, files: OutputFiles, explain: bool = False) -> None:
    """What `rheoscope learned` does."""
    result, terminal = learned(run), Terminal(console(), [], explain)
    terminal.print_block(build_table(result))
    for name, reason in skipped_quantities(result).items():
        terminal.print_line(f"no {field_title(name).lower()}: {reason}", "dim")
    terminal.print_files(write_files({"learned": result}, build_page(result).save if files.wants_page else None, files))


def build_table(result: "xarray.Dataset") -> Table:
    """A row a look, a column a quantity."""
    names = [name for name in QUANTITIES if name in result]
    header = [Cell("step"), *(Cell(field_title(name).lower(), QUANTITIES[name].definition) for name in names)]
    rows = [
        [Cell(f"{step:,}"), *(_value_cell(result, name, index) for name in names)]
        for index, step in enumerate(result.training_step.values)
    ]
    return Table(f"{LEARNED.question} {result.attrs['run']}", header, rows, frozenset(), note=NOTE)


def _value_cell(result: "xarray.Dataset", name: str, index: int) -> Cell:
    null = result.get(f"{name}_null")
    return Cell(
        format_value(float(result[name][index])), small_text="" if null is None else format_value(float(null[index]))
    )


def skipped_quantities(result: "xarray.Dataset") -> dict[str, str]:
    """What could not be asked of this model, and why."""
    reasons: dict[str, str] = json.loads(result.attrs.get("missing", "{}"))
    return reasons


def build_page(result: "xarray.Dataset") -> Page:
    """The curves, and the same as a table."""
    table = build_table(result)
    intro = f"{result.sizes['training_step']} looks at {result.attrs['tokens']} held-out tokens. {NOTE}"
    return (
        Page(f"{LEARNED.question} {Path(result.attrs['run']).resolve().name}", intro)
        .with_picture(picture_of(result))
        .with_table("Every look", table.header, table.rows, table.text_columns)
        .with_facts(
            "What the columns are",
            {field_title(name): QUANTITIES[name].definition for name in QUANTITIES if name in result},
        )
    )
