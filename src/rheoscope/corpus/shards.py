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

from rheoscope.corpus.corpus_job import Job, from_mapping
from rheoscope.corpus.input_texts import Input, Shard, plan
from rheoscope.corpus.parquet_tables import MANIFEST, parquet, sync, write
from rheoscope.files import alone, signature, strangers, whole_file
from rheoscope.shapes import RheoscopeError

PLAN = "plan.parquet"


@dataclass(frozen=True)
class Manifest:
    """What a run is: another fingerprint is another run."""

    fingerprint: str
    job: Job
    model: dict[str, Any]
    inputs: list[Input]

    def as_json(self) -> str:
        told = {"written_by": signature(), "fingerprint": self.fingerprint, "job": asdict(self.job)}
        return json.dumps(told | {"model": self.model, "inputs": [asdict(one) for one in self.inputs]}, indent=1)


@cache
def code_version() -> str:
    """The version of this package and a hash of its source: other code may give other numbers."""
    seen = hashlib.sha256()
    root = Path(__file__).parents[1]
    for file in sorted(root.rglob("*.py")):
        seen.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    return f"{signature()} {seen.hexdigest()[:16]}"


def fingerprint(job: Job, model: dict[str, Any], shards: list[Shard]) -> str:
    """Of the weights, the code, the settings and every row of the input."""
    told = json.dumps({"settings": job.settings(), "model": model, "code": code_version()}, sort_keys=True)
    seen = hashlib.sha256(told.encode())
    for shard in shards:
        seen.update(f"{shard.file} {shard.first} {shard.rows} {shard.digest}\n".encode())
    return seen.hexdigest()[:32]


# Opening a folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Inside, nobody else works on the folder of a run; before and after nothing in it is half-written."""
    foreign = [one for one in strangers(folder) if one.name != PLAN]
    if foreign and not (folder / MANIFEST).exists():  # the plan is written before the manifest
        raise RheoscopeError(f"{folder} is there and holds no corpus run; type another --out")
    with alone(folder):
        _clear(folder)
        yield
        _clear(folder)  # workers that were killed meanwhile


def _clear(folder: Path) -> None:
    """Remove what was being written when a run was killed."""
    for left in [*folder.glob(".*-*"), *folder.glob("*/.part-*"), *folder.glob("rows/*/.part-*")]:
        left.unlink(missing_ok=True)


def opened(folder: Path) -> Manifest:
    """The manifest of a folder that holds a run."""
    try:
        told = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        inputs = [Input(**one) for one in told["inputs"]]
        return Manifest(told["fingerprint"], from_mapping(told["job"]), told["model"], inputs)
    except FileNotFoundError:
        raise RheoscopeError(f"{folder} holds no corpus run; type rheoscope corpus run --out {folder} …") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RheoscopeError(f"the manifest of {folder} cannot be read ({error}); type another --out") from error


def planned(folder: Path, job: Job) -> tuple[list[Input], list[Shard]]:
    """The inputs and the units of work: those of the folder where no input was touched since, else read anew."""
    if (folder / MANIFEST).exists():
        held = opened(folder)
        same = held.job.texts == job.texts and (held.job.column, held.job.shard) == (job.column, job.shard)
        if same and all(_untouched(one) for one in held.inputs):
            return held.inputs, shards_of(folder)
    return plan(list(job.texts), job.column, job.shard)


def _untouched(one: Input) -> bool:
    try:
        about = Path(one.path).stat()
    except OSError:
        return False
    return (about.st_size, about.st_mtime_ns) == (one.size, one.changed)


def begin(folder: Path, job: Job, model: dict[str, Any], inputs: list[Input], shards: list[Shard]) -> Manifest:
    """The manifest of this job in a folder: written, or found there; that of another job is refused."""
    mine = Manifest(fingerprint(job, model, shards), job, model, inputs)
    if (folder / MANIFEST).exists():
        held = opened(folder)
        if held.fingerprint != mine.fingerprint:
            raise RheoscopeError(f"{folder} holds another run ({_difference(held, mine)}); type another --out")
    else:
        import pyarrow as pa

        write(folder / PLAN, pa.Table.from_pylist([asdict(one) for one in shards]))
    with whole_file(folder / MANIFEST) as temporary:
        temporary.write_text(mine.as_json(), encoding="utf-8")
        sync(temporary)
    sync(folder)
    return mine


def _difference(held: Manifest, mine: Manifest) -> str:
    """What makes it another run, as far as the manifest tells."""
    old, new = held.job.settings() | held.model, mine.job.settings() | mine.model
    told = [f"{name} {old.get(name)!r}, not {new[name]!r}" for name in new if old.get(name) != new[name]]
    if not told and [(one.size, one.rows) for one in held.inputs] != [(one.size, one.rows) for one in mine.inputs]:
        return "its input files have changed"
    return "; ".join(told) or "its input files or the code have changed"


def shards_of(folder: Path) -> list[Shard]:
    """Every unit of work of a run."""
    return [Shard(**row) for row in parquet().read_table(folder / PLAN).to_pylist()]


# What is done


def part(shard: int) -> str:
    """The name of a shard's file.

    >>> part(7)
    'part-0000007.parquet'
    """
    return f"part-{shard:07d}.parquet"


def done(folder: Path) -> list[int]:
    """The shards that are whole, rising."""
    return sorted(int(file.stem.removeprefix("part-")) for file in (folder / "done").glob("part-*.parquet"))


def files_of_table(folder: Path, table: str) -> list[Path]:
    """The files of a table, of shards that are whole."""
    named = (folder / table / part(shard) for shard in done(folder))
    return [file for file in named if file.exists()]
