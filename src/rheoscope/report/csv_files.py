"""Tables as a directory of CSV files, with one file of definitions and one of provenance."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.files import check_directory, check_writable, foreign_file_error, signature, write_together
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message, plural
from rheoscope.report.tables import csv_text, table
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import pandas
    import xarray

Rows = list[dict[str, str]]
Frames = dict[tuple[str, str], "pandas.DataFrame"]
"""(analysis, file name) → table."""

DEFINITIONS_FILE, PROVENANCE_FILE, COMPARED_DIRECTORY = "definitions.csv", "provenance.csv", "compared"
DEFINITION_COLUMNS = ("analysis", "file", "column", "definition", "unit", "null", "depends_on")
PROVENANCE_COLUMNS = ("analysis", "setting", "value", "written_by")
"""Column headings of both files. `files.SIGNATURE_PATTERN` recognises the files by them."""
OTHER_TABLES = ("findings", "story", "card", "learned", "race", "healing", "compare")
"""Tables that belong to no analysis."""


def save_csv(datasets: "Mapping[str, xarray.Dataset]", directory: Path) -> str:
    """Write every table of every analysis as `NAME.DIMENSIONS.csv`, such as `trajectory.step_token.csv`.

    `definitions.csv` defines every column, and `provenance.csv` holds the settings of each analysis. If one file cannot be
    written, none is. The returned message counts the tables.
    """
    check_table_directory(directory)
    tables = {name: table(dataset) for name, dataset in datasets.items()}
    frames: Frames = {
        (name, f"{name}.{dims.replace(' ', '_')}.csv"): frame
        for name, frames_by_dims in tables.items()
        for dims, frame in frames_by_dims.items()
    }
    table_texts = {file: csv_text(frame) for (_, file), frame in frames.items()}
    n_replaced = sum((directory / file).exists() for file in table_texts)
    description_texts = {
        DEFINITIONS_FILE: _merged_csv(directory / DEFINITIONS_FILE, DEFINITION_COLUMNS, _definition_rows(frames)),
        PROVENANCE_FILE: _merged_csv(directory / PROVENANCE_FILE, PROVENANCE_COLUMNS, _provenance_rows(datasets)),
    }
    write_together(directory, description_texts | table_texts)
    skipped_tables = [
        f"{name} {dims}"
        for name, frames_by_dims in tables.items()
        for frame in [*frames_by_dims.values()][:1]
        for dims in frame.attrs["left_out"]
    ]
    return _summary(len(table_texts), n_replaced, directory, skipped_tables)


def _summary(n_tables: int, n_replaced: int, directory: Path, skipped_tables: list[str]) -> Message:
    """How many tables were written and replaced, and which are too large."""
    count = plural(
        "wrote {n} table in {directory}", "wrote {n} tables in {directory}", n=n_tables, directory=str(directory)
    )
    if n_replaced:
        count = Message("{count} (replaced {n_replaced})", count=count, n_replaced=n_replaced)
    if skipped_tables:
        return Message("{count}; too large for CSV: {tables}", count=count, tables=", ".join(skipped_tables))
    return count


def _definition_rows(frames: Frames) -> Rows:
    return [
        {"analysis": name, "file": file, "column": column}
        | {key: frame.attrs[f"{key}s"].get(column, "") for key in ("definition", "unit", "null")}
        | {"depends_on": frame.attrs["depends_on"].get(column, "")}
        for (name, file), frame in frames.items()
        for column in map(str, frame.columns)
    ]


def _provenance_rows(datasets: "Mapping[str, xarray.Dataset]") -> Rows:
    return [
        {"analysis": name, "setting": str(setting), "value": str(value), "written_by": signature()}
        for name, dataset in datasets.items()
        for setting, value in dataset.attrs.items()
    ]


def check_table_directory(directory: Path) -> None:
    """Raise if tables cannot be written there, or if foreign files have the names of tables."""
    if os.path.isfile(directory):  # Path.is_file raises where permission is missing
        raise RheoscopeError(
            Message("{path} is a file, expected a directory for the tables", path=str(directory)),
            use(csv=f"{directory.with_suffix('')}-tables"),
        )
    check_directory(directory)
    for name in (DEFINITIONS_FILE, PROVENANCE_FILE):
        check_writable(directory / name)
    own_files = {row["file"] for row in _read_rows(directory / DEFINITIONS_FILE)}
    for file in sorted(directory.glob("*.csv")):
        if file.name.split(".")[0].split(" ")[0] in (*ANALYSIS_MODULES, *OTHER_TABLES) and file.name not in own_files:
            raise RheoscopeError(foreign_file_error(file).message, use(csv=f"{directory.absolute()}-tables"))
    if (directory / COMPARED_DIRECTORY).exists():
        check_table_directory(directory / COMPARED_DIRECTORY)


def _merged_csv(path: Path, header: Sequence[str], rows: Rows) -> str:
    """The rows as CSV, after those of `path` that describe other tables."""
    import pandas as pd

    key = "file" if "file" in header else "analysis"
    new_keys = {row[key] for row in rows}
    retained_rows = [
        row
        for row in _read_rows(path)
        if row[key] not in new_keys and (key != "file" or (path.parent / row[key]).is_file())
    ]
    return pd.DataFrame([*retained_rows, *rows], columns=list(header)).to_csv(index=False, lineterminator="\n")


def _read_rows(path: Path) -> Rows:
    import pandas as pd

    if not path.exists():
        return []
    return pd.read_csv(path, dtype=str, keep_default_na=False, on_bad_lines="skip").to_dict("records")
