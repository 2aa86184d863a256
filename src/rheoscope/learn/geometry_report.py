"""`rheoscope learned`: how geometry formed, as a table in the terminal, as files, and as a page."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.learn.geometry_over_training import LEARNED, SEEN, learned
from rheoscope.picture.blocks import Cell, Table
from rheoscope.picture.field_panels import in_words
from rheoscope.picture.picture import number
from rheoscope.report.console import console
from rheoscope.report.draw_result import picture_of
from rheoscope.report.page import Page
from rheoscope.report.run_report import Files, write
from rheoscope.report.terminal import Terminal

if TYPE_CHECKING:
    import xarray

NOTE = "Small: what chance gives in the same model, or equal weights. The look at step 0 is the untrained model, the control of all others."


def show(run: Path, files: Files, explain: bool = False) -> None:
    """What `rheoscope learned` does."""
    found, terminal = learned(run), Terminal(console(), [], explain)
    terminal.show(table_of(found))
    for name, why in missing(found).items():
        terminal.line(f"no {in_words(name).lower()}: {why}", "dim")
    terminal.files(write({"learned": found}, page_of(found).save if files.page else None, files))


def table_of(found: "xarray.Dataset") -> Table:
    """A row a look, a column a quantity."""
    names = [name for name in SEEN if name in found]
    header = [Cell("step"), *(Cell(in_words(name).lower(), SEEN[name].told) for name in names)]
    rows = [
        [Cell(f"{step:,}"), *(_cell(found, name, at) for name in names)]
        for at, step in enumerate(found.training_step.values)
    ]
    return Table(f"{LEARNED.question} {found.attrs['run']}", header, rows, frozenset(), note=NOTE)


def _cell(found: "xarray.Dataset", name: str, at: int) -> Cell:
    null = found.get(f"{name}_null")
    return Cell(number(float(found[name][at])), small="" if null is None else number(float(null[at])))


def missing(found: "xarray.Dataset") -> dict[str, str]:
    """What could not be asked of this model, and why."""
    told: dict[str, str] = json.loads(found.attrs.get("missing", "{}"))
    return told


def page_of(found: "xarray.Dataset") -> Page:
    """The curves, and the same as a table."""
    table = table_of(found)
    lead = f"{found.sizes['training_step']} looks at {found.attrs['tokens']} held-out tokens. {NOTE}"
    return (
        Page(f"{LEARNED.question} {Path(found.attrs['run']).resolve().name}", lead)
        .drawing(picture_of(found))
        .table("Every look", table.header, table.rows, table.words)
        .facts("What the columns are", {in_words(name): SEEN[name].told for name in SEEN if name in found})
    )
