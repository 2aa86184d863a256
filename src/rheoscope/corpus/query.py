"""SQL queries of a run: DuckDB on its Parquet files, with one view per analysis.

Rows identify the coordinates along an axis by number. The table `places` maps the numbers to labels.
"""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rheoscope.corpus.commit_records import SUMMARY_RECORD
from rheoscope.corpus.file_faults import MISSING, Fault, raise_for_faults
from rheoscope.corpus.parquet_tables import INSTALL_CORPUS, import_parquet
from rheoscope.corpus.run_files import RunFiles
from rheoscope.corpus.sql_statements import copy_target
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

AXIS_LABEL_COLUMNS = {"analysis": "VARCHAR", "axis": "VARCHAR", "place": "INTEGER", "name": "VARCHAR"}
SUMMARY_VIEW = "summary"


@dataclass(frozen=True, eq=False)
class Database:
    """A DuckDB connection to the tables of a run. A table becomes a view when a query mentions it."""

    connection: Any
    files: RunFiles
    views: dict[str, list[Path]] = field(default_factory=dict)
    """The views so far, with their files."""

    def query(self, sql: str) -> Any:
        """A query as a DuckDB relation. Invalid SQL gives an error of one line.

        The digests of all files that it may read are checked first.
        """
        import duckdb

        self._open_views(sql)
        try:
            if copy_target(sql) is None:
                relation = self.connection.sql(sql)
            else:
                (n_rows,) = self.connection.execute(sql).fetchone()
                relation = self.connection.sql(f"SELECT {n_rows} AS rows_written")
        except duckdb.Error as error:
            raise rejected_query(error, self.files.folder) from None
        if relation is None:
            raise RheoscopeError(
                Message("the statement returns no rows, expected a SELECT"),
                Advice('corpus.sql("SELECT * FROM texts")', '"SELECT * FROM texts"'),
            )
        return relation

    def _open_views(self, sql: str) -> None:
        """Check the files of the tables that a query may read, and create the views that do not exist yet."""
        names = table_names(self.files)
        mentioned = [name for name in names if _is_mentioned(name, sql)] or names
        for name in dict.fromkeys([*self.views, *mentioned]):
            paths = table_paths(self.files, name)
            if name not in self.views and paths:
                _create_view(self.connection, name, paths)
                self.views[name] = paths
        for analysis in dict.fromkeys(name.split(".")[0] for name in mentioned if "." in name):
            table = default_table(analysis, names)
            self.connection.execute(f"CREATE OR REPLACE VIEW main.{analysis} AS SELECT * FROM {table}")


def rejected_query(error: Exception, folder: Path) -> RheoscopeError:
    """The error of DuckDB about a query, as one line."""
    return RheoscopeError(
        Message("DuckDB rejected the query: {reason}", reason=str(error).splitlines()[0]),
        Advice("", f"rheoscope corpus query {shlex.quote(str(folder))}"),
    )


def table_names(files: RunFiles) -> list[str]:
    """All tables of a run by the name of their view: analysis.axes, texts, rejects, summary."""
    rows = [name.removeprefix("rows/") for name in files.tables if name.startswith("rows/")]
    return [*rows, *(name for name in ("texts", "rejects") if name in files.tables), SUMMARY_VIEW]


def table_paths(files: RunFiles, name: str) -> list[Path]:
    """The files of a table, after a check of their digests. An unfinished run has no summary yet."""
    if name != SUMMARY_VIEW:
        return files.table(f"rows/{name}" if "." in name else name)
    path = files.summary()
    if path is None and len(files.records) == files.manifest.shards:
        raise_for_faults(files.folder, [Fault(SUMMARY_RECORD, MISSING)])
    return [] if path is None else [path]


def _is_mentioned(name: str, sql: str) -> bool:
    """Whether the name of a table, or of its analysis, occurs in a query."""
    return re.search(rf"\b{re.escape(name.split('.')[0])}\b", sql, re.IGNORECASE) is not None


def _create_view(connection: Any, name: str, paths: list[Path]) -> None:
    path_list = ", ".join("'" + str(file).replace("'", "''") + "'" for file in paths)
    schema, dot, _ = name.partition(".")
    if dot:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet([{path_list}], union_by_name=true)")


def default_table(analysis: str, names: list[str]) -> str:
    """The table with the plain name of its analysis: the one per head, or the one with the fewest axes."""
    candidates = [name for name in names if name.split(".")[0] == analysis]
    return next(
        (name for name in candidates if name.endswith(".layer_head")),
        min(candidates, key=lambda name: (name.count("_"), name)),
    )


def connect(files: RunFiles) -> Database:
    """DuckDB with a view per table: agreement.layer_head (short: agreement), texts, rejects and summary."""
    try:
        import duckdb
    except ImportError as error:
        raise RheoscopeError(Message("SQL queries need the package duckdb"), INSTALL_CORPUS) from error
    connection = duckdb.connect()
    connection.execute(
        f"CREATE TABLE places ({', '.join(f'{column} {sql_type}' for column, sql_type in AXIS_LABEL_COLUMNS.items())})"
    )
    for row in axis_label_rows(files):
        connection.execute("INSERT INTO places VALUES (?, ?, ?, ?)", row)
    return Database(connection, files)


def axis_label_rows(files: RunFiles) -> list[tuple[str, str, int, str]]:
    """All labelled coordinates: analysis, axis, number, label."""
    return [
        (analysis, axis, index, str(name))
        for analysis, axes in files.manifest.model.get("places", {}).items()
        for axis, names in axes.items()
        for index, name in enumerate(names)
    ]


def table_columns(files: RunFiles) -> dict[str, list[str]]:
    """All views and their columns."""
    paths_by_table = {name: table_paths(files, name) for name in table_names(files)}
    return {name: import_parquet().read_schema(paths[0]).names for name, paths in paths_by_table.items() if paths} | {
        "places": list(AXIS_LABEL_COLUMNS)
    }
