"""Tables as a directory of CSV files, with their definitions and their provenance beside them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.catalogue import TABLE
from rheoscope.files import check_directory, check_free, signature, write_file
from rheoscope.report.tables import csv_text, table
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import xarray

Rows = list[dict[str, str]]

DEFINITIONS, PROVENANCE, COMPARED = "definitions.csv", "provenance.csv", "compared"
OF_COLUMNS = ("analysis", "file", "column", "definition", "unit", "null", "depends_on")
OF_ANALYSES = ("analysis", "setting", "value", "written_by")
"""The headers of both; by them files are known again (`files.SIGNED`)."""
BESIDES = ("findings", "verdicts", "learned", "race", "healing")
"""What has tables and is no analysis."""


def save_csv(datasets: "Mapping[str, xarray.Dataset]", directory: Path) -> str:
    """Every table of every analysis as `NAME.DIMENSIONS.csv` (`trajectory.step_token.csv`); says how many, and how many were there.

    `definitions.csv` says what every column of every table is, `provenance.csv` where each analysis comes from.
    """
    check_tables(directory)
    tables = {name: table(one) for name, one in datasets.items()}
    frames = {
        (name, f"{name}.{dims.replace(' ', '_')}.csv"): frame
        for name, of in tables.items()
        for dims, frame in of.items()
    }
    columns = [
        {"analysis": name, "file": file, "column": column}
        | {key: frame.attrs[f"{key}s"].get(column, "") for key in ("definition", "unit", "null")}
        | {"depends_on": frame.attrs["depends_on"].get(column, "")}
        for (name, file), frame in frames.items()
        for column in map(str, frame.columns)
    ]
    settings = [
        {"analysis": name, "setting": str(setting), "value": str(value), "written_by": signature()}
        for name, one in datasets.items()
        for setting, value in one.attrs.items()
    ]
    _add(directory / DEFINITIONS, OF_COLUMNS, columns)  # first: files are known by being listed there
    _add(directory / PROVENANCE, OF_ANALYSES, settings)
    said = [_saved(csv_text(frame), directory / file) for (_, file), frame in frames.items()]
    left_out = [
        f"{name} {dims}"
        for name, of in tables.items()
        for frame in [*of.values()][:1]
        for dims in frame.attrs["left_out"]
    ]
    replaced = sum(line.startswith("replaced") for line in said)
    told = f"wrote {len(said)} tables in {directory}" + f" (replaced {replaced})" * bool(replaced)
    return told + f", left out for their size: {', '.join(left_out)}" * bool(left_out)


def check_tables(directory: Path) -> None:
    """Refuse a place where no tables can be written, or where others' files have the names of tables."""
    if os.path.isfile(directory):  # a Path would raise where it may not be looked at
        raise RheoscopeError(
            f"{directory} is a file, expected a directory, in which every table has its file; type {directory.with_suffix('')}-tables"
        )
    check_directory(directory)
    for name in (DEFINITIONS, PROVENANCE):
        check_free(directory / name)
    own = {row["file"] for row in _rows(directory / DEFINITIONS)}
    for file in sorted(directory.glob("*.csv")):
        if file.name.split(".")[0].split(" ")[0] in (*TABLE, *BESIDES) and file.name not in own:
            raise RheoscopeError(f"{file} is there and was not written by Rheoscope; type another directory")
    if (directory / COMPARED).exists():
        check_tables(directory / COMPARED)


def _add(path: Path, header: Sequence[str], rows: Rows) -> None:
    """Put rows in the place of those of the same file, or analysis; what is told of other tables stays."""
    import pandas as pd

    key = "file" if "file" in header else "analysis"
    new = {row[key] for row in rows}
    kept = [row for row in _rows(path) if row[key] not in new and (key != "file" or (path.parent / row[key]).is_file())]
    text = pd.DataFrame([*kept, *rows], columns=list(header)).to_csv(index=False, lineterminator="\n")
    check_free(path)
    _saved(text, path)


def _saved(text: str, path: Path) -> str:
    return write_file(path, lambda to: to.write_text(text, encoding="utf-8", newline=""))


def _rows(path: Path) -> Rows:
    import pandas as pd

    if not path.exists():
        return []
    return pd.read_csv(path, dtype=str, keep_default_na=False, on_bad_lines="skip").to_dict("records")
