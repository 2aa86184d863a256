"""The merged summaries of all shards. A few shards are merged at a time, so memory does not grow with the corpus."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rheoscope.corpus.commit_records import DONE, SUMMARY_RECORD, ShardRecord, SummaryRecord
from rheoscope.corpus.durable_files import fsync_path, write_text
from rheoscope.corpus.parquet_tables import import_parquet, write_table
from rheoscope.corpus.shard_worker import label_summary
from rheoscope.corpus.shards import SUMMARIES, part_file_name
from rheoscope.corpus.summaries import Summary, from_columns, merge_parts, to_columns
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

SHARDS_PER_MERGE = 16
"""The number of shards merged at once."""
SUMMARY = "summary.parquet"


@dataclass(frozen=True, eq=False)
class FieldSummary:
    """A summary of a field, with the axes and sizes of its cells."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    summary: Summary


FieldSummaries = dict[tuple[str, str], FieldSummary]
"""(analysis, field) → its summary."""


def read_summaries(file: Path) -> FieldSummaries:
    """The summaries of a file."""
    table = import_parquet().read_table(file)
    if not table.num_columns:
        return {}
    if "document_count" not in table.column_names:
        raise RheoscopeError(
            Message("{file} was written by an earlier version, without documents; run the corpus again", file=str(file))
        )
    names = [np.asarray(table[name].to_pylist(), dtype=object) for name in ("analysis", "field")]
    starts = np.flatnonzero(np.asarray(table["cell"]) == 0).tolist()
    summaries: FieldSummaries = {}
    for start, stop in zip(starts, [*starts[1:], len(table)], strict=True):
        field_rows = table.slice(start, stop - start)
        dims, shape = tuple(field_rows["dims"][0].as_py().split()), tuple(field_rows["shape"][0].as_py())
        summaries[names[0][start], names[1][start]] = FieldSummary(dims, shape, from_columns(field_rows))
    return summaries


def merge_summaries(parts: Sequence[FieldSummaries], top: int) -> FieldSummaries:
    """Merge several sets of summaries, over all their fields."""
    keys = dict.fromkeys(key for part in parts for key in part)
    groups = {key: [part[key] for part in parts if key in part] for key in keys}
    return {
        key: FieldSummary(
            group[0].dims, group[0].shape, merge_parts([field_summary.summary for field_summary in group], top)
        )
        for key, group in groups.items()
    }


def merge_shards(files: Sequence[Path], top: int) -> FieldSummaries:
    """The merged summaries of these files, one per shard."""
    accumulated = list[FieldSummaries]()
    for start in range(0, len(files), SHARDS_PER_MERGE):
        accumulated = [
            merge_summaries(
                [*accumulated, *(read_summaries(file) for file in files[start : start + SHARDS_PER_MERGE])], top
            )
        ]
    return accumulated[0] if accumulated else {}


def write_summary(folder: Path, fingerprint: str, records: Sequence[ShardRecord], top: int) -> None:
    """Write the merged summaries to one file, sorted by field, so that the order of the shards has no effect.

    Until its commit record is written, readers merge the shards themselves.
    """
    import pyarrow as pa

    if (folder / SUMMARY_RECORD).exists():
        (folder / SUMMARY_RECORD).unlink()
        fsync_path(folder / DONE)
    summaries = merge_shards([folder / SUMMARIES / part_file_name(record.shard) for record in records], top)
    parts = [
        label_summary(to_columns(field_summary.summary), *key, field_summary.dims, field_summary.shape)
        for key, field_summary in sorted(summaries.items())
    ]
    file = write_table(folder, SUMMARY, pa.concat_tables(parts) if parts else pa.table({}))
    write_text(folder, SUMMARY_RECORD, SummaryRecord(fingerprint, len(records), (file,)).to_json())
