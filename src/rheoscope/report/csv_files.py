"""Tables as a directory of CSV files, with their definitions and their provenance beside them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.files import check_directory, check_writable, signature, write_file
from rheoscope.report.tables import csv_text, table
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import xarray

Rows = list[dict[str, str]]

DEFINITIONS_FILE, PROVENANCE_FILE, COMPARED_DIRECTORY = "definitions.csv", "provenance.csv", "compared"
DEFINITION_COLUMNS = ("analysis", "file", "column", "definition", "unit", "null", "depends_on")
PROVENANCE_COLUMNS = ("analysis", "setting", "value", "written_by")
"""The headers of both; by them files are known again (`files.SIGNED`)."""
OTHER_TABLES = ("findings", "verdicts", "learned", "race", "healing")
"""What has tables and is no analysis."""


def save_csv(datasets: "Mapping[str, xarray.Dataset]", directory: Path) -> str:
    """Every table of every analysis as `NAME.DIMENSIONS.csv` (`trajectory.step_token.csv`); says how many, and how many were there.

    `definitions.csv` says what every column of every table is, `provenance.csv` where each analysis comes from.
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
    _merge_rows(
        directory / DEFINITIONS_FILE, DEFINITION_COLUMNS, definition_rows
    )  # first: files are known by being listed there
    _merge_rows(directory / PROVENANCE_FILE, PROVENANCE_COLUMNS, provenance_rows)
    messages = [_write_text(csv_text(frame), directory / file) for (_, file), frame in frames.items()]
    skipped_tables = [
        f"{name} {dims}"
        for name, frames_by_dims in tables.items()
        for frame in [*frames_by_dims.values()][:1]
        for dims in frame.attrs["left_out"]
    ]
    n_replaced = sum(line.startswith("replaced") for line in messages)
    summary = f"wrote {len(messages)} tables in {directory}" + f" (replaced {n_replaced})" * bool(n_replaced)
    return summary + f", left out for their size: {', '.join(skipped_tables)}" * bool(skipped_tables)


def check_table_directory(directory: Path) -> None:
    """Refuse a place where no tables can be written, or where others' files have the names of tables."""
    if os.path.isfile(directory):  # a Path would raise where it may not be looked at
        raise RheoscopeError(
            f"{directory} is a file, expected a directory, in which every table has its file; type {directory.with_suffix('')}-tables"
        )
    check_directory(directory)
    for name in (DEFINITIONS_FILE, PROVENANCE_FILE):
        check_writable(directory / name)
    own_files = {row["file"] for row in _read_rows(directory / DEFINITIONS_FILE)}
    for file in sorted(directory.glob("*.csv")):
        if file.name.split(".")[0].split(" ")[0] in (*ANALYSIS_MODULES, *OTHER_TABLES) and file.name not in own_files:
            raise RheoscopeError(f"{file} exists and was not written by Rheoscope; type another directory")
    if (directory / COMPARED_DIRECTORY).exists():
        check_table_directory(directory / COMPARED_DIRECTORY)


def _merge_rows(path: Path, header: Sequence[str], rows: Rows) -> None:
    """Put rows in the place of those of the same file, or analysis; what is told of other tables stays."""
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
