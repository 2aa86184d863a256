"""A query creates files with COPY … TO, but it never replaces one and never writes in another way."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rheoscope.corpus.query import Database, connect
from rheoscope.corpus.sql_statements import copy_target
from rheoscope.shapes import RheoscopeError

pytest.importorskip("duckdb")


@pytest.fixture
def database() -> Database:
    """A database of a run without files."""
    files: Any = SimpleNamespace(
        folder=Path("run"), tables=[], records=[], summary=lambda: None, manifest=SimpleNamespace(model={}, shards=1)
    )
    return connect(files)


def test_copy_creates_a_file_and_never_replaces_one(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thesis.csv").write_text("years of work")
    (tmp_path / "link.csv").symlink_to("nowhere")
    (tmp_path / "it's.csv").touch()
    assert database.query("COPY (SELECT 1 AS x UNION SELECT 2) TO 'new.csv'").fetchall() == [(2,)]
    assert len((tmp_path / "new.csv").read_text().split()) == 3
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.exists()}
    for target in ("thesis.csv", "link.csv", "new.csv", "it''s.csv", f"{tmp_path}/thesis.csv", str(tmp_path)):
        for statement in (
            f"COPY (SELECT 'TO' AS x) TO '{target}'",
            f"copy places to /* here */ '{target}' (FORMAT csv) -- done",
        ):
            with pytest.raises(RheoscopeError, match="exists, and a query never overwrites a file"):
                database.query(statement)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.exists()} == before


@pytest.mark.parametrize(
    "statement",
    [
        "COPY places TO 'a.csv'; COPY places TO 'a.csv'",
        "EXPLAIN ANALYZE COPY places TO 'a.csv'",
        "PREPARE p AS COPY places TO 'a.csv'",
        "COPY places TO $$a.csv$$",
        "COPY places TO (concat('a', '.csv'))",
        "EXPORT DATABASE 'a'",
        "ATTACH 'a.db'",
        "COPY FROM DATABASE memory TO a",
    ],
)
def test_all_other_ways_to_write_a_file_are_refused(
    statement: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RheoscopeError, match="a query may write files only as a single COPY"):
        database.query(statement)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "query", ["SELECT 1 AS copy", "FROM places", "PIVOT places ON axis", "EXPLAIN SELECT 'COPY x TO ''y'''"]
)
def test_queries_that_only_read_are_allowed(query: str) -> None:
    assert copy_target(query) is None
