"""The folder of a run: what was asked, the units of work, what is done, and who works on it.

    manifest.json            the job, its fingerprint, the model, the inputs
    plan.parquet             every shard: rows of one input file, with their digest
    rows/<analysis>.<axes>/  part-<shard>.parquet
    texts/ rejects/          the same for the texts themselves, and for what could not be asked
    done/                    the summaries of a shard: written last, so what has them is whole
    summary.parquet          those of all shards together

A shard is done when its file in done/ is there. Everything before that is written again, with the same bytes.
"""

import hashlib
import json
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
from rheoscope.shapes import RheoscopeError

PLAN = "plan.parquet"


@dataclass(frozen=True)
class Manifest:
    """What a run is: another fingerprint is another run."""

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
    """The version of this package and a hash of its source: other code may give other numbers."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    return f"{signature()} {digest.hexdigest()[:16]}"


def fingerprint(job: Job, model: dict[str, Any], shards: list[Shard]) -> str:
    """Of the weights, the code, the settings and every row of the input."""
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
    """Inside, nobody else works on the folder of a run; before and after nothing in it is half-written."""
    foreign = [path for path in foreign_files(folder) if path.name != PLAN]
    if foreign and not (folder / MANIFEST).exists():  # the plan is written before the manifest
        raise RheoscopeError(f"{folder} is there and holds no corpus run; type another --out")
    with directory_lock(folder):
        _remove_partial_files(folder)
        yield
        _remove_partial_files(folder)  # workers that were killed meanwhile


def _remove_partial_files(folder: Path) -> None:
    """Remove what was being written when a run was killed."""
    for partial_file in [*folder.glob(".*-*"), *folder.glob("*/.part-*"), *folder.glob("rows/*/.part-*")]:
        partial_file.unlink(missing_ok=True)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder that holds a run."""
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        inputs = [Input(**entry) for entry in content["inputs"]]
        return Manifest(content["fingerprint"], job_from_mapping(content["job"]), content["model"], inputs)
    except FileNotFoundError:
        raise RheoscopeError(f"{folder} holds no corpus run; type rheoscope corpus run --out {folder} …") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RheoscopeError(f"the manifest of {folder} cannot be read ({error}); type another --out") from error


def load_or_plan(folder: Path, job: Job) -> tuple[list[Input], list[Shard]]:
    """The inputs and the units of work: those of the folder where no input was touched since, else read anew."""
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
    """The manifest of this job in a folder: written, or found there; that of another job is refused."""
    manifest = Manifest(fingerprint(job, model, shards), job, model, inputs)
    if (folder / MANIFEST).exists():
        stored = read_manifest(folder)
        if stored.fingerprint != manifest.fingerprint:
            raise RheoscopeError(f"{folder} holds another run ({_difference(stored, manifest)}); type another --out")
    else:
        import pyarrow as pa

        write_table(folder / PLAN, pa.Table.from_pylist([asdict(shard) for shard in shards]))
    with atomic_file(folder / MANIFEST) as temporary:
        temporary.write_text(manifest.to_json(), encoding="utf-8")
        fsync_path(temporary)
    fsync_path(folder)
    return manifest


def _difference(stored: Manifest, requested: Manifest) -> str:
    """What makes it another run, as far as the manifest tells."""
    old, new = stored.job.fingerprint_settings() | stored.model, requested.job.fingerprint_settings() | requested.model
    changes = [f"{name} {old.get(name)!r}, not {new[name]!r}" for name in new if old.get(name) != new[name]]
    if not changes and [(input_file.size, input_file.rows) for input_file in stored.inputs] != [
        (input_file.size, input_file.rows) for input_file in requested.inputs
    ]:
        return "its input files have changed"
    return "; ".join(changes) or "its input files or the code have changed"


def read_shards(folder: Path) -> list[Shard]:
    """Every unit of work of a run."""
    return [Shard(**row) for row in import_parquet().read_table(folder / PLAN).to_pylist()]


# What is done


def part_file_name(shard: int) -> str:
    """The name of a shard's file.

    >>> part_file_name(7)
    'part-0000007.parquet'
    """
    return f"part-{shard:07d}.parquet"


def finished_shards(folder: Path) -> list[int]:
    """The shards that are whole, rising."""
    return sorted(int(file.stem.removeprefix("part-")) for file in (folder / "done").glob("part-*.parquet"))


def table_files(folder: Path, table: str) -> list[Path]:
    """The files of a table, of shards that are whole."""
    paths = (folder / table / part_file_name(shard) for shard in finished_shards(folder))
    return [file for file in paths if file.exists()]
