"""Checks of SQL statements before they run: a query may create a file with COPY … TO, but it never replaces one."""

import os
from itertools import pairwise
from pathlib import Path

from rheoscope.files import unused_name
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

WRITERS = ("EXPORT", "ATTACH", "COPY_DATABASE", "LOAD")
"""Types of statements that write files whose names cannot be checked."""
EXAMPLE = "COPY (SELECT * FROM texts) TO 'texts.csv'"


def copy_target(sql: str) -> Path | None:
    """The file that the query writes: the target of a single COPY … TO, or None if the query only reads.

    Raises if the file exists, and for all other statements that write files. Invalid SQL raises an error of DuckDB.

    >>> copy_target("SELECT 1"), str(copy_target("COPY (SELECT 1) TO 'new file.csv'"))
    (None, 'new file.csv')
    """
    import duckdb

    statements = duckdb.extract_statements(sql)
    types = [statement.type.name for statement in statements]
    is_writer = any(
        kind in WRITERS or (kind not in ("SELECT", "MULTI") and _has_copy(statement.query))
        for kind, statement in zip(types, statements, strict=True)
    )
    if not is_writer:
        return None
    target = _target(statements[0].query) if types == ["COPY"] else None
    if target is None:
        raise RheoscopeError(
            Message("a query may write files only as a single COPY … TO 'FILE'"),
            Advice(f'corpus.sql("{EXAMPLE}")', f'"{EXAMPLE}"'),
        )
    path = Path(target).expanduser()
    if "://" in target or (os.path.lexists(path) and not (path.is_char_device() or path.is_fifo())):
        free_path = str(unused_name(path))
        raise RheoscopeError(
            Message("{path} exists, and a query never overwrites a file", path=target),
            Advice(f"TO '{free_path}'", f"TO '{free_path}'"),
        )
    return path


def _tokens(sql: str) -> list[tuple[str, str]]:
    """The tokens of a statement as (type, text), without comments."""
    import duckdb

    data, tokens = sql.encode(), duckdb.tokenize(sql)
    ends = [*(start for start, _ in tokens[1:]), len(data)]
    texts = [data[start:end].decode().strip() for (start, _), end in zip(tokens, ends, strict=True)]
    return [(kind.name, text) for (_, kind), text in zip(tokens, texts, strict=True) if kind.name != "comment"]


def _has_copy(sql: str) -> bool:
    return any(kind == "keyword" and text.lower() == "copy" for kind, text in _tokens(sql))


def _target(sql: str) -> str | None:
    """The string after the last TO of a COPY statement, or None if there is no plain string."""
    tokens = _tokens(sql)
    after_to = [following for (kind, text), following in pairwise(tokens) if kind == "keyword" and text.lower() == "to"]
    kind, text = after_to[-1] if after_to else ("", "")
    is_plain = kind == "string_const" and text.startswith("'") and text.endswith("'")
    return text[1:-1].replace("''", "'") if is_plain else None
