"""The rows of a run in SQL: DuckDB on the Parquet files, a view for every analysis.

Rows tell the places along an axis by their numbers; `places` has the name of each.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rheoscope.corpus.merged_summary import SUMMARY
from rheoscope.corpus.parquet_tables import parquet
from rheoscope.corpus.shards import files_of_table, opened
from rheoscope.shapes import RheoscopeError

PLACES = {"analysis": "VARCHAR", "axis": "VARCHAR", "place": "INTEGER", "name": "VARCHAR"}


@dataclass(frozen=True, eq=False)
class Database:
    """A connection to DuckDB that knows the tables of a run."""

    connection: Any

    def ask(self, sql: str) -> Any:
        """A DuckDB relation; what is no SQL is told in one line."""
        import duckdb

        try:
            found = self.connection.sql(sql)
        except duckdb.Error as error:
            raise RheoscopeError(
                f"DuckDB says: {str(error).splitlines()[0]}; type rheoscope corpus query DIR for the views"
            ) from None
        if found is None:
            raise RheoscopeError("this asks nothing; type a SELECT")
        return found


def files(folder: Path) -> dict[str, list[Path]]:
    """Every table of a run, by the name of its view: analysis.axes, texts, rejects, summary."""
    opened(folder)
    named = sorted(one.name for one in (folder / "rows").glob("*")) if (folder / "rows").is_dir() else []
    found = {name: files_of_table(folder, f"rows/{name}") for name in named}
    found |= {name: files_of_table(folder, name) for name in ("texts", "rejects")}
    found["summary"] = [folder / SUMMARY] if (folder / SUMMARY).exists() else []
    return {name: some for name, some in found.items() if some}


def first_table(analysis: str, names: list[str]) -> str:
    """The table that goes by the name of its analysis alone: that of its heads, or else the one with the fewest axes."""
    mine = [name for name in names if name.split(".")[0] == analysis]
    return next(
        (name for name in mine if name.endswith(".layer_head")), min(mine, key=lambda name: (name.count("_"), name))
    )


def connected(folder: Path) -> Database:
    """DuckDB with a view for every table: agreement.layer_head, and agreement for short; texts, rejects, summary."""
    try:
        import duckdb
    except ImportError as error:
        raise RheoscopeError(
            "a corpus is asked by DuckDB, which is not here; type pip install 'rheoscope[corpus]'"
        ) from error
    connection, named = duckdb.connect(), files(folder)
    for name, some in named.items():
        listed = ", ".join("'" + str(file).replace("'", "''") + "'" for file in some)
        schema, dot, axes = name.partition(".")
        if dot:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        view = f"{schema}.{axes}" if dot else name
        connection.execute(f"CREATE VIEW {view} AS SELECT * FROM read_parquet([{listed}], union_by_name=true)")
    for analysis in dict.fromkeys(name.split(".")[0] for name in named if "." in name):
        connection.execute(f"CREATE VIEW main.{analysis} AS SELECT * FROM {first_table(analysis, list(named))}")
    connection.execute(f"CREATE TABLE places ({', '.join(f'{column} {kind}' for column, kind in PLACES.items())})")
    for row in named_places(folder):
        connection.execute("INSERT INTO places VALUES (?, ?, ?, ?)", row)
    return Database(connection)


def named_places(folder: Path) -> list[tuple[str, str, int, str]]:
    """Every place along an axis that has a name: analysis, axis, its number, its name."""
    return [
        (analysis, axis, at, str(name))
        for analysis, axes in opened(folder).model.get("places", {}).items()
        for axis, names in axes.items()
        for at, name in enumerate(names)
    ]


def tables_of(folder: Path) -> dict[str, list[str]]:
    """Every view and its columns."""
    return {name: parquet().read_schema(some[0]).names for name, some in files(folder).items()} | {
        "places": list(PLACES)
    }
