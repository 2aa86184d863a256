"""The output of `rheoscope learned`: a table in the terminal, files and a page."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.checkpoint_series import load_series
from rheoscope.learn.geometry_over_training import LEARNED, QUANTITIES, learned, learned_of_series
from rheoscope.messages.message import Message, plural
from rheoscope.picture.blocks import Cell, Table
from rheoscope.picture.field_panels import field_title
from rheoscope.picture.picture import format_value
from rheoscope.report.console import console
from rheoscope.report.draw_result import picture_of
from rheoscope.report.page import Page
from rheoscope.report.progress_bars import progress_bar
from rheoscope.report.run_report import OutputFiles, write_files
from rheoscope.report.terminal import Terminal

if TYPE_CHECKING:
    import xarray

NOTE = Message("Small numbers are the values expected by chance in the same model.")
UNTRAINED_NOTE = Message(
    "Small numbers are the values expected by chance in the same model. Step 0 is the untrained model, the control of all "
    "others."
)


def show_learned(run: Path, files: OutputFiles, explain: bool = False, text: str | None = None) -> None:
    """Run `rheoscope learned`: show the observations of a run, or measure the checkpoints in a folder on a text."""
    result = learned(run) if text is None else _measure_checkpoints(run, text)
    terminal = Terminal(console(), [], explain)
    terminal.print_block(build_table(result))
    for name, reason in skipped_quantities(result).items():
        terminal.print_line(Message("{quantity} is missing: {reason}", quantity=name, reason=reason), "dim")
    terminal.print_files(write_files({"learned": result}, build_page(result).save if files.wants_page else None, files))


def _measure_checkpoints(folder: Path, text: str) -> "xarray.Dataset":
    with progress_bar(Message("loading the checkpoints")) as start_task:
        return learned_of_series(
            load_series(folder),
            text,
            lambda done, total, label: start_task(Message("checkpoint {label}", label=label))(done, total),
        )


def build_table(result: "xarray.Dataset") -> Table:
    """One row per observed step, one column per quantity."""
    names = [name for name in QUANTITIES if name in result]
    header = [Cell(Message("step")), *(Cell(field_title(name), QUANTITIES[name].definition) for name in names)]
    rows = [
        [Cell(f"{step:,}"), *(_value_cell(result, name, index) for name in names)]
        for index, step in enumerate(result.training_step.values)
    ]
    heading = Message("{question} {run}", question=LEARNED.question, run=result.attrs["run"])
    return Table(heading, header, rows, frozenset(), note=_note(result))


def _note(result: "xarray.Dataset") -> str:
    """How to read the numbers."""
    return UNTRAINED_NOTE if 0 in result.training_step.values.tolist() else NOTE


def _value_cell(result: "xarray.Dataset", name: str, index: int) -> Cell:
    null = result.get(f"{name}_null")
    return Cell(
        format_value(float(result[name][index])), small_text="" if null is None else format_value(float(null[index]))
    )


def skipped_quantities(result: "xarray.Dataset") -> dict[str, str]:
    """The quantities that this model does not support, with the reasons."""
    reasons: dict[str, str] = json.loads(result.attrs.get("missing", "{}"))
    return reasons


def build_page(result: "xarray.Dataset") -> Page:
    """The curves, and the same numbers as a table."""
    table = build_table(result)
    intro = plural(
        "{n} observation of {tokens} held-out tokens. {note}",
        "{n} observations of {tokens} held-out tokens. {note}",
        n=result.sizes["training_step"],
        tokens=result.attrs["tokens"],
        note=_note(result),
    )
    title = Message("{question} {run}", question=LEARNED.question, run=Path(result.attrs["run"]).resolve().name)
    return (
        Page(title, intro)
        .with_picture(picture_of(result))
        .with_table(Message("All observations"), table.header, table.rows, table.text_columns)
        .with_facts(
            Message("Definitions of the columns"),
            {field_title(name): QUANTITIES[name].definition for name in QUANTITIES if name in result},
        )
    )
