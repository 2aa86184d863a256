"""Tables as a directory of CSV files, with a file of definitions and a file of provenance."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.files import check_directory, check_writable, signature, write_file
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message, join
from rheoscope.report.tables import csv_text, table
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import xarray

Rows = list[dict[str, str]]

DEFINITIONS_FILE, PROVENANCE_FILE, COMPARED_DIRECTORY = "definitions.csv", "provenance.csv", "compared"
DEFINITION_COLUMNS = ("analysis", "file", "column", "definition", "unit", "null", "depends_on")
PROVENANCE_COLUMNS = ("analysis", "setting", "value", "written_by")
"""The headers of both files, by which `rheoscope.files` recognises them."""
OTHER_TABLES = ("findings", "verdicts", "learned", "race", "healing")
"""Names of tables that do not belong to an analysis."""


def save_csv(datasets: "Mapping[str, xarray.Dataset]", directory: Path) -> str:
    """Write every table as `NAME.DIMENSIONS.csv`, such as `trajectory.step_token.csv`. Returns a summary.

    `definitions.csv` defines every column of every table, `provenance.csv` has the settings and the origin of each analysis.
    """
    check_table_directory(directory)
    tables = {name: table(dataset) for name, dataset in datasets.items()}
    frames = {
        (name, f"{name}.{dims.replace(' ', '_')}.csv"): frame
        for name, frames_by_dims in tables.items()
        for dims, frame in frames_by_dims.items()
    }
    definition_rows = [
        {"analysis": name, "file": file, "column": column}
        | {key: frame.attrs[f"{key}s"].get(column, "") for key in ("definition", "unit", "null")}
        | {"depends_on": frame.attrs["depends_on"].get(column, "")}
        for (name, file), frame in frames.items()
        for column in map(str, frame.columns)
    ]
    provenance_rows = [
        {"analysis": name, "setting": str(setting), "value": str(value), "written_by": signature()}
        for name, dataset in datasets.items()
        for setting, value in dataset.attrs.items()
    ]
    # The definitions come first, because they list the files that belong to Rheoscope.
    _merge_rows(directory / DEFINITIONS_FILE, DEFINITION_COLUMNS, definition_rows)
    _merge_rows(directory / PROVENANCE_FILE, PROVENANCE_COLUMNS, provenance_rows)
    n_replaced = sum((directory / file).exists() for _, file in frames)
    for (_, file), frame in frames.items():
        _write_text(csv_text(frame), directory / file)
    skipped_tables = [
        f"{name} {dims}"
        for name, frames_by_dims in tables.items()
        for frame in [*frames_by_dims.values()][:1]
        for dims in frame.attrs["left_out"]
    ]
    parts = [Message("wrote {n} tables in {directory}", n=len(frames), directory=str(directory))]
    if n_replaced:
        parts.append(Message("{n} were replaced", n=n_replaced))
    if skipped_tables:
        parts.append(Message("too large and left out: {tables}", tables=", ".join(skipped_tables)))
    return join("; ", parts)


def check_table_directory(directory: Path) -> None:
    """Raise if tables cannot be written there, or if files of others have the names of tables."""
    if os.path.isfile(directory):  # Path.is_file raises without permission
        raise RheoscopeError(
            Message("{path} is a file, expected a directory for the tables", path=str(directory)),
            Advice("", f"--csv {directory.with_suffix('')}-tables"),
        )
    check_directory(directory)
    for name in (DEFINITIONS_FILE, PROVENANCE_FILE):
        check_writable(directory / name)
    own_files = {row["file"] for row in _read_rows(directory / DEFINITIONS_FILE)}
    for file in sorted(directory.glob("*.csv")):
        if file.name.split(".")[0].split(" ")[0] in (*ANALYSIS_MODULES, *OTHER_TABLES) and file.name not in own_files:
            raise RheoscopeError(
                Message("{path} exists and was not written by Rheoscope", path=str(file)),
                Advice("", "--csv with another directory"),
            )
    if (directory / COMPARED_DIRECTORY).exists():
        check_table_directory(directory / COMPARED_DIRECTORY)


def _merge_rows(path: Path, header: Sequence[str], rows: Rows) -> None:
    """Replace the rows of the same file or analysis, and retain those of other tables."""
    import pandas as pd

    key = "file" if "file" in header else "analysis"
    new_keys = {row[key] for row in rows}
    retained_rows = [
        row
        for row in _read_rows(path)
        if row[key] not in new_keys and (key != "file" or (path.parent / row[key]).is_file())
    ]
    text = pd.DataFrame([*retained_rows, *rows], columns=list(header)).to_csv(index=False, lineterminator="\n")
    check_writable(path)
    _write_text(text, path)


def _write_text(text: str, path: Path) -> str:
    return write_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline=""))


def _read_rows(path: Path) -> Rows:
    import pandas as pd

    if not path.exists():
        return []
    return pd.read_csv(path, dtype=str, keep_default_na=False, on_bad_lines="skip").to_dict("records")
