"""An analysis over a series of checkpoints from the command line: a table, files and a page with the curves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rheoscope.catalogue import analysis_by_name
from rheoscope.checkpoint_series import CheckpointSeries, Label, load_series, over_series
from rheoscope.messages.message import Message, join
from rheoscope.picture.blocks import Cell, Table
from rheoscope.picture.field_panels import field_title, main_fields
from rheoscope.picture.picture import format_value
from rheoscope.picture.series_panels import CHECKPOINT, values_of
from rheoscope.report.console import console
from rheoscope.report.draw_result import picture_of
from rheoscope.report.page import Page
from rheoscope.report.progress_bars import progress_bar
from rheoscope.report.run_report import OutputFiles, write_files
from rheoscope.report.terminal import Terminal

if TYPE_CHECKING:
    import xarray

MAX_COLUMNS = 6
"""Columns of the table in the terminal. Files and the page have all fields."""
SMALL_CAPTION = Message("Small numbers are the values expected by chance in the same checkpoint.")
NOTE = Message("Means over layers, heads and tokens. All numbers are in --json, --csv and --html.")


def open_series(
    series: str | None, revisions: str | None, model: str | None, device: str | None, dtype: str | None
) -> CheckpointSeries:
    """The series that the options `--series`, or `--model` and `--revisions`, name."""
    names = None if revisions is None else [name.strip() for name in revisions.split(",") if name.strip()]
    return load_series(series or model or "", names, device, dtype)


def run_series(
    name: str, series: CheckpointSeries, text: Any, settings: dict[str, Any], files: OutputFiles, explain: bool
) -> None:
    """Run an analysis on every checkpoint, print one row for each, and write the requested files."""
    terminal = Terminal(console(), [], explain)
    with progress_bar(Message("loading the checkpoints")) as start_task:

        def on_checkpoint(done: int, total: int, label: Label) -> None:
            start_task(Message("checkpoint {label}", label=label))(done, total)

        result = over_series(analysis_by_name(name).ask, series, text, on_checkpoint, **settings)
    terminal.print_block(build_table(result, MAX_COLUMNS))
    terminal.print_files(write_files({name: result}, build_page(result).save if files.wants_page else None, files))


def build_table(result: "xarray.Dataset", max_columns: int | None = None) -> Table:
    """One row per checkpoint and one column per field, averaged over all other axes."""
    values = values_of(result)
    names = main_fields(values)[:max_columns]
    header = [
        Cell(Message("checkpoint")),
        *(Cell(field_title(name), str(values[name].attrs.get("definition", ""))) for name in names),
    ]
    rows = [
        [Cell(str(label)), *_value_cells(values, names, index)]
        for index, label in enumerate(values[CHECKPOINT].values.tolist())
    ]
    heading = Message("{question} {run}", question=result.attrs["question"], run=result.attrs["series"])
    return Table(heading, header, rows, frozenset(), SMALL_CAPTION, NOTE)


def _value_cells(values: "xarray.Dataset", names: Sequence[str], index: int) -> list[Cell]:
    """The values of one checkpoint, each with its null."""
    cells = []
    for name in names:
        null = values.get(values[name].attrs.get("null", ""))
        null_text = "" if null is None else format_value(float(null[index]))
        cells.append(Cell(format_value(float(values[name][index])), small_text=null_text))
    return cells


def build_page(result: "xarray.Dataset") -> Page:
    """The curves along training, and all means as a table."""
    table = build_table(result)
    title = Message("{question} {run}", question=result.attrs["question"], run=result.attrs["series"])
    return (
        Page(title, join(" ", [NOTE, SMALL_CAPTION]))
        .with_picture(picture_of(result))
        .with_table(Message("All checkpoints"), table.header, table.rows, table.text_columns)
        .with_facts(
            Message("Definitions of the columns"),
            {
                field_title(name): str(result[name].attrs.get("definition", ""))
                for name in main_fields(values_of(result))
            },
        )
    )
