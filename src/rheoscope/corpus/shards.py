"""The folder of a run: its manifest, its shards and what is finished.

    manifest.json            the job, its fingerprint, the model, the inputs
    plan.parquet             every shard: rows of one input file, with their digest
    rows/<analysis>.<axes>/  part-<shard>.parquet
    texts/ rejects/          the same for the texts and for the rejects
    done/                    the summaries of a shard, written last
    summary.parquet          the summaries of all shards, merged

A shard is finished if its file in done/ exists. Everything else is written again, with the same bytes.
"""

import hashlib
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rheoscope.corpus.corpus_job import Job, job_from_mapping
from rheoscope.corpus.input_texts import Input, Shard, plan_shards
from rheoscope.corpus.parquet_tables import MANIFEST, fsync_path, import_parquet, write_table
from rheoscope.files import atomic_file, directory_lock, foreign_files, signature
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message, join
from rheoscope.shapes import RheoscopeError

PLAN = "plan.parquet"


@dataclass(frozen=True)
class Manifest:
    """The identity of a run. A different fingerprint is a different run."""

    fingerprint: str
    job: Job
    model: dict[str, Any]
    inputs: list[Input]

    def to_json(self) -> str:
        content = {"written_by": signature(), "fingerprint": self.fingerprint, "job": asdict(self.job)}
        return json.dumps(
            content | {"model": self.model, "inputs": [asdict(input_file) for input_file in self.inputs]}, indent=1
        )


@cache
def code_version() -> str:
    """The version of this package and a hash of its source, because other code may give other numbers."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    return f"{signature()} {digest.hexdigest()[:16]}"


def fingerprint(job: Job, model: dict[str, Any], shards: list[Shard]) -> str:
    """A hash of the weights, the code, the settings and every row of the input."""
    settings_json = json.dumps(
        {"settings": job.fingerprint_settings(), "model": model, "code": code_version()}, sort_keys=True
    )
    digest = hashlib.sha256(settings_json.encode())
    for shard in shards:
        digest.update(f"{shard.file} {shard.first} {shard.rows} {shard.digest}\n".encode())
    return digest.hexdigest()[:32]


# Opening a folder


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Lock the folder of a run, and remove partial files before and after."""
    foreign = [path for path in foreign_files(folder) if path.name != PLAN]
    if foreign and not (folder / MANIFEST).exists():  # the plan is written before the manifest
        raise RheoscopeError(
            Message("{folder} exists and holds no corpus run; choose another folder", folder=str(folder))
        )
    with directory_lock(folder):
        _remove_partial_files(folder)
        yield
        _remove_partial_files(folder)  # of workers that were killed meanwhile


def _remove_partial_files(folder: Path) -> None:
    """Remove the files that a killed run was writing."""
    for partial_file in [*folder.glob(".*-*"), *folder.glob("*/.part-*"), *folder.glob("rows/*/.part-*")]:
        partial_file.unlink(missing_ok=True)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a run."""
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        inputs = [Input(**entry) for entry in content["inputs"]]
        return Manifest(content["fingerprint"], job_from_mapping(content["job"]), content["model"], inputs)
    except FileNotFoundError:
        raise RheoscopeError(
            Message("{folder} holds no corpus run", folder=str(folder)),
            Advice("", f"rheoscope corpus run --texts FILE --out {shlex.quote(str(folder))}"),
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RheoscopeError(
            Message("cannot read the manifest of {folder}: {reason}", folder=str(folder), reason=str(error))
        ) from error


def load_or_plan(folder: Path, job: Job) -> tuple[list[Input], list[Shard]]:
    """The inputs and shards: the stored ones if no input file changed, otherwise planned again."""
    if (folder / MANIFEST).exists():
        manifest = read_manifest(folder)
        is_same_plan = manifest.job.texts == job.texts and (manifest.job.column, manifest.job.shard) == (
            job.column,
            job.shard,
        )
        if is_same_plan and all(_is_unchanged(input_file) for input_file in manifest.inputs):
            return manifest.inputs, read_shards(folder)
    return plan_shards(list(job.texts), job.column, job.shard)


def _is_unchanged(input_file: Input) -> bool:
    try:
        file_stat = Path(input_file.path).stat()
    except OSError:
        return False
    return (file_stat.st_size, file_stat.st_mtime_ns) == (input_file.size, input_file.changed)


def start_run(folder: Path, job: Job, model: dict[str, Any], inputs: list[Input], shards: list[Shard]) -> Manifest:
    """Write the manifest of this job, or check the stored one. Another job in the same folder is refused."""
    manifest = Manifest(fingerprint(job, model, shards), job, model, inputs)
    if (folder / MANIFEST).exists():
        stored = read_manifest(folder)
        if stored.fingerprint != manifest.fingerprint:
            raise RheoscopeError(
                Message(
                    "{folder} holds another run ({difference}); choose another folder",
                    folder=str(folder),
                    difference=_difference(stored, manifest),
                )
            )
    else:
        import pyarrow as pa

        write_table(folder / PLAN, pa.Table.from_pylist([asdict(shard) for shard in shards]))
    with atomic_file(folder / MANIFEST) as temporary:
        temporary.write_text(manifest.to_json(), encoding="utf-8")
        fsync_path(temporary)
    fsync_path(folder)
    return manifest


def _difference(stored: Manifest, requested: Manifest) -> Message:
    """The settings in which two runs differ."""
    old, new = stored.job.fingerprint_settings() | stored.model, requested.job.fingerprint_settings() | requested.model
    changes: list[str] = [
        Message(
            "{setting} is {stored!r} there, {requested!r} here", setting=name, stored=old.get(name), requested=new[name]
        )
        for name in new
        if old.get(name) != new[name]
    ]
    if not changes and [(input_file.size, input_file.rows) for input_file in stored.inputs] != [
        (input_file.size, input_file.rows) for input_file in requested.inputs
    ]:
        return Message("its input files have changed")
    return join("; ", changes) if changes else Message("its input files or the code have changed")


def read_shards(folder: Path) -> list[Shard]:
    """All shards of a run."""
    return [Shard(**row) for row in import_parquet().read_table(folder / PLAN).to_pylist()]


# Finished shards


def part_file_name(shard: int) -> str:
    """The file name of a shard.

    >>> part_file_name(7)
    'part-0000007.parquet'
    """
    return f"part-{shard:07d}.parquet"


def finished_shards(folder: Path) -> list[int]:
    """The numbers of the finished shards, in ascending order."""
    return sorted(int(file.stem.removeprefix("part-")) for file in (folder / "done").glob("part-*.parquet"))


def table_files(folder: Path, table: str) -> list[Path]:
    """The files of a table, for finished shards only."""
    paths = (folder / table / part_file_name(shard) for shard in finished_shards(folder))
    return [file for file in paths if file.exists()]
