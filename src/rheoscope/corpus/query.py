"""SQL queries of a run: DuckDB on its Parquet files, with one view per analysis.

Rows identify the coordinates along an axis by number. The table `places` maps the numbers to labels.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rheoscope.corpus.merged_summary import SUMMARY
from rheoscope.corpus.parquet_tables import INSTALL_CORPUS, import_parquet
from rheoscope.corpus.shards import read_manifest, table_files
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

AXIS_LABEL_COLUMNS = {"analysis": "VARCHAR", "axis": "VARCHAR", "place": "INTEGER", "name": "VARCHAR"}


@dataclass(frozen=True, eq=False)
class Database:
    """A DuckDB connection with the tables of a run."""

    connection: Any
    folder: Path

    def query(self, sql: str) -> Any:
        """A query as a DuckDB relation. Invalid SQL gives an error of one line."""
        import duckdb

        try:
            relation = self.connection.sql(sql)
        except duckdb.Error as error:
            raise RheoscopeError(
                Message("DuckDB rejected the query: {reason}", reason=str(error).splitlines()[0]),
                Advice("", f"rheoscope corpus query {shlex.quote(str(self.folder))}"),
            ) from None
        if relation is None:
            raise RheoscopeError(
                Message("the statement returns no rows, expected a SELECT"),
                Advice('corpus.sql("SELECT * FROM texts")', '"SELECT * FROM texts"'),
            )
        return relation


def run_tables(folder: Path) -> dict[str, list[Path]]:
    """All tables of a run by the name of their view: analysis.axes, texts, rejects, summary."""
    read_manifest(folder)
    names = sorted(path.name for path in (folder / "rows").glob("*")) if (folder / "rows").is_dir() else []
    files_by_table = {name: table_files(folder, f"rows/{name}") for name in names}
    files_by_table |= {name: table_files(folder, name) for name in ("texts", "rejects")}
    files_by_table["summary"] = [folder / SUMMARY] if (folder / SUMMARY).exists() else []
    return {name: table_paths for name, table_paths in files_by_table.items() if table_paths}


def default_table(analysis: str, names: list[str]) -> str:
    """The table with the plain name of its analysis: the one per head, or the one with the fewest axes."""
    candidates = [name for name in names if name.split(".")[0] == analysis]
    return next(
        (name for name in candidates if name.endswith(".layer_head")),
        min(candidates, key=lambda name: (name.count("_"), name)),
    )


def connect(folder: Path) -> Database:
    """DuckDB with a view per table: agreement.layer_head (short: agreement), texts, rejects and summary."""
    try:
        import duckdb
    except ImportError as error:
        raise RheoscopeError(Message("SQL queries need the package duckdb"), INSTALL_CORPUS) from error
    connection, tables = duckdb.connect(), run_tables(folder)
    for name, table_paths in tables.items():
        path_list = ", ".join("'" + str(file).replace("'", "''") + "'" for file in table_paths)
        schema, dot, axes = name.partition(".")
        if dot:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        view = f"{schema}.{axes}" if dot else name
        connection.execute(f"CREATE VIEW {view} AS SELECT * FROM read_parquet([{path_list}], union_by_name=true)")
    for analysis in dict.fromkeys(name.split(".")[0] for name in tables if "." in name):
        connection.execute(f"CREATE VIEW main.{analysis} AS SELECT * FROM {default_table(analysis, list(tables))}")
    connection.execute(
        f"CREATE TABLE places ({', '.join(f'{column} {sql_type}' for column, sql_type in AXIS_LABEL_COLUMNS.items())})"
    )
    for row in axis_label_rows(folder):
        connection.execute("INSERT INTO places VALUES (?, ?, ?, ?)", row)
    return Database(connection, folder)


def axis_label_rows(folder: Path) -> list[tuple[str, str, int, str]]:
    """All labelled coordinates: analysis, axis, number, label."""
    return [
        (analysis, axis, index, str(name))
        for analysis, axes in read_manifest(folder).model.get("places", {}).items()
        for axis, names in axes.items()
        for index, name in enumerate(names)
    ]


def table_columns(folder: Path) -> dict[str, list[str]]:
    """All views and their columns."""
    return {
        name: import_parquet().read_schema(table_paths[0]).names for name, table_paths in run_tables(folder).items()
    } | {"places": list(AXIS_LABEL_COLUMNS)}
