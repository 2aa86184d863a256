"""The committed files of a run. Each is handed out only after a check of its size and its digest.

A digest that was checked before is looked up in a cache, as long as the size and the modification time of the file stay
the same. `find_faults` checks every digest without the cache.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rheoscope.corpus.commit_records import (
    SUMMARY_RECORD,
    ShardRecord,
    SummaryRecord,
    finished_shards,
    read_shard_record,
    read_summary_record,
    record_path,
)
from rheoscope.corpus.durable_files import CommittedFile
from rheoscope.corpus.file_faults import CHANGED, MISSING, Fault, content_fault, raise_for_faults, size_fault
from rheoscope.corpus.manifest import READ_ERRORS, Manifest, check_manifest, has_manifest, read_manifest
from rheoscope.files import atomic_file
from rheoscope.messages.message import Message

CACHE = ".verified.json"
"""The digests that were checked: path → [size, modification time in nanoseconds, digest]."""


class RunFiles:
    """The files of the finished shards. Raises if the manifest, a commit record or the size of a file is wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, read_manifest(folder)
        self.records, self.summary_record, faults = _read_records(folder, self.manifest)
        raise_for_faults(folder, faults)
        self.check_sizes()
        self._cache = _read_cache(folder)

    def check_sizes(self) -> None:
        """Raise if a committed file is missing or has another size."""
        raise_for_faults(
            self.folder, _file_faults(self.folder, self.manifest, self.records, self.summary_record, size_fault)
        )

    @property
    def tables(self) -> list[str]:
        """The folders of all tables, such as rows/agreement.layer_head, texts or rejects."""
        return sorted({_table_of(file) for record in self.records for file in record.files})

    def table(self, name: str) -> list[Path]:
        """The files of a table in the order of the shards, after a check of their digests."""
        return self._checked(file for record in self.records for file in record.files if _table_of(file) == name)

    def summary(self) -> Path | None:
        """The merged summary, after a check of its digest. None if it does not cover all finished shards."""
        if self.summary_record is None or self.summary_record.shards != len(self.records):
            return None
        return self._checked(self.summary_record.files)[0]

    def _checked(self, files: Iterable[CommittedFile]) -> list[Path]:
        """The paths of the files. Raises for those that are not as they were committed."""
        paths, faults, stamps = list[Path](), list[Fault](), dict[str, list[Any]]()
        for file in files:
            path = self.folder / file.path
            reason = size_fault(self.folder, file)
            if reason is None:
                stamp = [file.size, path.stat().st_mtime_ns, file.digest]  # before the file is read
                if self._cache.get(file.path) != stamp:
                    reason = content_fault(self.folder, file)
                    stamps[file.path] = stamp
            if reason is not None:
                faults.append(Fault(file.path, reason))
            paths.append(path)
        raise_for_faults(self.folder, faults)
        if stamps:
            self._cache |= stamps
            _write_cache(self.folder, self._cache)
        return paths


def find_faults(folder: Path) -> list[Fault]:
    """All faults of a run, from the digest of every file, without the cache. Empty for a folder without a run."""
    if not has_manifest(folder):
        return []
    manifest, manifest_faults = check_manifest(folder)
    records, summary_record, record_faults = _read_records(folder, manifest)
    if len(records) == manifest.shards and not (folder / SUMMARY_RECORD).exists():
        record_faults.append(Fault(SUMMARY_RECORD, MISSING))
    file_faults = _file_faults(folder, manifest, records, summary_record, content_fault)
    return [*manifest_faults, *record_faults, *file_faults]


def _read_records(folder: Path, manifest: Manifest) -> tuple[list[ShardRecord], SummaryRecord | None, list[Fault]]:
    """The intact records, and the faults of all others. A finished run has a record of every shard."""
    finished, faults = finished_shards(folder), list[Fault]()
    records: list[ShardRecord] = []
    for shard in finished:
        try:
            records.append(read_shard_record(folder, shard))
        except READ_ERRORS:
            faults.append(Fault(record_path(shard), CHANGED, shard))
    summary_record = None
    try:
        summary_record = read_summary_record(folder, manifest.fingerprint)
    except FileNotFoundError:
        pass
    except READ_ERRORS:
        faults.append(Fault(SUMMARY_RECORD, CHANGED))
    if summary_record is not None:
        missing = sorted(set(range(summary_record.shards)) - set(finished))
        faults += [Fault(record_path(shard), MISSING, shard) for shard in missing]
    return records, summary_record, faults


def _file_faults(
    folder: Path,
    manifest: Manifest,
    records: Iterable[ShardRecord],
    summary_record: SummaryRecord | None,
    check: Callable[[Path, CommittedFile], Message | None],
) -> list[Fault]:
    """The faults of all files that the manifest and the records list."""

    def committed_files() -> Iterator[tuple[CommittedFile, int | None]]:
        yield manifest.plan, None
        for record in records:
            yield from ((file, record.shard) for file in record.files)
        if summary_record is not None:
            yield from ((file, None) for file in summary_record.files)

    checks = ((file.path, check(folder, file), shard) for file, shard in committed_files())
    return [Fault(path, reason, shard) for path, reason, shard in checks if reason is not None]


def _table_of(file: CommittedFile) -> str:
    return file.path.rpartition("/")[0]


def _read_cache(folder: Path) -> dict[str, list[Any]]:
    with suppress(OSError, ValueError):
        cache = json.loads((folder / CACHE).read_bytes())
        if isinstance(cache, dict):
            return cache
    return {}


def _write_cache(folder: Path, cache: dict[str, list[Any]]) -> None:
    """Store the cache, unless the folder is read-only."""
    with suppress(OSError), atomic_file(folder / CACHE) as temporary:
        temporary.write_text(json.dumps(cache), encoding="utf-8")
