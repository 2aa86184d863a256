"""The summaries of all shards together, a few shards at a time: memory does not grow with the corpus."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rheoscope.corpus.parquet_tables import parquet, write
from rheoscope.corpus.shard_worker import labelled
from rheoscope.corpus.shards import done, files_of_table
from rheoscope.corpus.summaries import Summary, columns, from_columns, merged
from rheoscope.shapes import RheoscopeError

TOGETHER = 16
"""Shards that are merged at once."""
SUMMARY = "summary.parquet"


@dataclass(frozen=True, eq=False)
class Kept:
    """A summary of a field, and the axes that make its cells."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    summary: Summary


Every = dict[tuple[str, str], Kept]
"""(analysis, field) → what is kept of it."""


def read(file: Path) -> Every:
    """The summaries of a file."""
    table = parquet().read_table(file)
    if not table.num_columns:
        return {}
    if "document_count" not in table.column_names:
        raise RheoscopeError(f"{file} was written by an earlier version, without documents; run the corpus again")
    names = [np.asarray(table[name].to_pylist(), dtype=object) for name in ("analysis", "field")]
    starts = np.flatnonzero(np.asarray(table["cell"]) == 0).tolist()
    found: Every = {}
    for low, high in zip(starts, [*starts[1:], len(table)], strict=True):
        some = table.slice(low, high - low)
        dims, shape = tuple(some["dims"][0].as_py().split()), tuple(some["shape"][0].as_py())
        found[names[0][low], names[1][low]] = Kept(dims, shape, from_columns(some))
    return found


def together(parts: Sequence[Every], top: int) -> Every:
    """Several of them as one: every field that any of them has."""
    keys = dict.fromkeys(key for part in parts for key in part)
    found = {key: [part[key] for part in parts if key in part] for key in keys}
    return {
        key: Kept(some[0].dims, some[0].shape, merged([one.summary for one in some], top))
        for key, some in found.items()
    }


def merge(folder: Path, top: int) -> Every:
    """The summaries of all shards that are done."""
    files, whole = files_of_table(folder, "done"), list[Every]()
    for low in range(0, len(files), TOGETHER):
        whole = [together([*whole, *(read(file) for file in files[low : low + TOGETHER])], top)]
    return whole[0] if whole else {}


def write_summary(folder: Path, top: int) -> None:
    """The summaries of all shards as one file, fields in the order of their names: no order of the shards shows."""
    import pyarrow as pa

    every = merge(folder, top)
    parts = [labelled(columns(one.summary), *key, one.dims, one.shape) for key, one in sorted(every.items())]
    table = pa.concat_tables(parts) if parts else pa.table({})
    write(folder / SUMMARY, table.replace_schema_metadata({"shards": str(len(done(folder)))}))


def counts(folder: Path) -> dict[str, Any]:
    """How many texts, tokens and rejects the shards hold that are done."""
    found = {"texts": 0, "tokens": 0, "rejects": 0}
    for file in files_of_table(folder, "done"):
        about = parquet().read_schema(file).metadata
        found = {name: held + int(about[name.encode()]) for name, held in found.items()}
    return found
