"""The folder of a run: how it is opened, planned and continued.

    manifest.json            the job, its fingerprint, the model, the inputs; manifest.copy.json is the same
    plan.parquet             every shard: rows of one input file, with their digest
    rows/<analysis>.<axes>/  part-<shard>.parquet
    texts/ rejects/          the same for the texts and for the rejects
    summaries/               the same for the summaries of a shard
    summary.parquet          the summaries of all shards, merged
    done/                    the commit records: size and digest of every file above

A shard is finished if its record in done/ exists and every file is as recorded. All others are written again, with
the same bytes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.file_faults import content_fault
from rheoscope.corpus.input_texts import Input, Shard, plan_shards
from rheoscope.corpus.manifest import (
    PLAN,
    Manifest,
    fingerprint,
    has_manifest,
    recover_manifest,
    write_manifest,
)
from rheoscope.corpus.parquet_tables import import_parquet, write_table
from rheoscope.files import directory_lock, foreign_files
from rheoscope.messages.message import Message, join
from rheoscope.shapes import RheoscopeError

SUMMARIES = "summaries"
"""The folder of the summaries of single shards."""


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Lock the folder of a run, and remove partial files before and after."""
    foreign = [path for path in foreign_files(folder) if path.name != PLAN]
    if foreign and not has_manifest(folder):  # the plan is written before the manifest
        raise RheoscopeError(
            Message("{folder} exists and holds no corpus run; choose another folder", folder=str(folder))
        )
    with directory_lock(folder):
        _remove_partial_files(folder)
        yield
        _remove_partial_files(folder)  # of workers that were killed meanwhile


def _remove_partial_files(folder: Path) -> None:
    """Remove the files that a killed run was writing."""
    for pattern in (".*-*", "*/.part-*", "rows/*/.part-*", "done/.summary-*"):
        for partial_file in folder.glob(pattern):
            partial_file.unlink(missing_ok=True)


def load_or_plan(folder: Path, job: Job) -> tuple[list[Input], list[Shard]]:
    """The inputs and shards: the stored ones if no input file changed, otherwise planned again."""
    if has_manifest(folder):
        manifest = recover_manifest(folder)
        is_same_plan = manifest.job.texts == job.texts and (manifest.job.column, manifest.job.shard) == (
            job.column,
            job.shard,
        )
        is_plan_intact = is_same_plan and content_fault(folder, manifest.plan) is None
        if is_plan_intact and all(input_file.is_unchanged() for input_file in manifest.inputs):
            return manifest.inputs, read_shards(folder)
    return plan_shards(list(job.texts), job.column, job.shard)


def start_run(folder: Path, job: Job, model: dict[str, Any], inputs: list[Input], shards: list[Shard]) -> Manifest:
    """Write the plan and the manifest of this job where they are missing or damaged.

    Another job in the same folder is refused.
    """
    run, stored = fingerprint(job, model, shards), recover_manifest(folder) if has_manifest(folder) else None
    if stored is not None and stored.fingerprint != run:
        raise RheoscopeError(
            Message(
                "{folder} holds another run ({difference}); choose another folder",
                folder=str(folder),
                difference=_difference(stored, job, model, inputs),
            )
        )
    if stored is None or content_fault(folder, stored.plan) is not None:
        import pyarrow as pa

        table = pa.Table.from_pylist([asdict(shard) for shard in shards])
        plan = write_table(folder, PLAN, table.replace_schema_metadata({"fingerprint": run}))
    else:
        plan = stored.plan
    manifest = Manifest(run, job, model, inputs, plan, len(shards))
    write_manifest(folder, manifest)
    return manifest


def _difference(stored: Manifest, job: Job, model: dict[str, Any], inputs: list[Input]) -> Message:
    """The settings in which two runs differ."""
    old, new = stored.job.fingerprint_settings() | stored.model, job.fingerprint_settings() | model
    changes: list[str] = [
        Message(
            "{setting} is {stored!r} there, {requested!r} here", setting=name, stored=old.get(name), requested=new[name]
        )
        for name in new
        if old.get(name) != new[name]
    ]
    if not changes and [x.digest for x in stored.inputs] != [x.digest for x in inputs]:
        return Message("its input files have changed")
    return join("; ", changes) if changes else Message("its input files or the code have changed")


def read_shards(folder: Path) -> list[Shard]:
    """All shards of a run."""
    return [Shard(**row) for row in import_parquet().read_table(folder / PLAN).to_pylist()]


def part_file_name(shard: int) -> str:
    """The file name of a shard.

    >>> part_file_name(7)
    'part-0000007.parquet'
    """
    return f"part-{shard:07d}.parquet"
