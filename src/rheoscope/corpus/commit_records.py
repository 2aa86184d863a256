"""Commit records: the files of a finished shard, or of the merged summary, with the size and digest of each.

done/part-<shard>.json   written last; a shard without it is not finished
done/summary.json        written when all shards are finished and their summaries are merged
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rheoscope.corpus.durable_files import CommittedFile
from rheoscope.corpus.sealed_json import seal, unseal

DONE = "done"
SUMMARY_RECORD = f"{DONE}/summary.json"


@dataclass(frozen=True)
class ShardRecord:
    """The counts and the files of a finished shard."""

    shard: int
    texts: int
    tokens: int
    rejects: int
    files: tuple[CommittedFile, ...]

    def to_json(self) -> str:
        return seal(asdict(self))


@dataclass(frozen=True)
class SummaryRecord:
    """The merged summary of a finished run: the fingerprint of the run, its number of shards and the file."""

    fingerprint: str
    shards: int
    files: tuple[CommittedFile, ...]

    def to_json(self) -> str:
        return seal(asdict(self))


def record_path(shard: int) -> str:
    """The path of the commit record of a shard.

    >>> record_path(7)
    'done/part-0000007.json'
    """
    return f"{DONE}/part-{shard:07d}.json"


def finished_shards(folder: Path) -> list[int]:
    """The numbers of the finished shards, in ascending order."""
    names = (file.stem.removeprefix("part-") for file in (folder / DONE).glob("part-*.json"))
    return sorted(int(name) for name in names if name.isdecimal())


def read_shard_record(folder: Path, shard: int) -> ShardRecord:
    """The record of a shard. Raises ValueError if it is damaged or belongs to another shard."""
    content = unseal((folder / record_path(shard)).read_bytes())
    record = ShardRecord(**content | {"files": _committed_files(content)})
    if record.shard != shard:
        raise ValueError(f"the record belongs to shard {record.shard}")
    return record


def read_summary_record(folder: Path, fingerprint: str) -> SummaryRecord:
    """The record of the merged summary. Raises ValueError if it is damaged or belongs to another run."""
    content = unseal((folder / SUMMARY_RECORD).read_bytes())
    record = SummaryRecord(**content | {"files": _committed_files(content)})
    if record.fingerprint != fingerprint:
        raise ValueError("the record belongs to another run")
    return record


def _committed_files(content: dict[str, Any]) -> tuple[CommittedFile, ...]:
    return tuple(CommittedFile(**entry) for entry in content["files"])


def total_counts(records: Iterable[ShardRecord]) -> dict[str, int]:
    """The numbers of texts, tokens and rejects in the finished shards."""
    totals = {"texts": 0, "tokens": 0, "rejects": 0}
    for record in records:
        totals = {name: total + getattr(record, name) for name, total in totals.items()}
    return totals
