"""The manifest of a run: its job, model, inputs and plan. It is stored twice, so that one copy can restore the other."""

import hashlib
import json
import shlex
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rheoscope.corpus.corpus_job import Job, job_from_mapping
from rheoscope.corpus.durable_files import MANIFEST, CommittedFile, write_text
from rheoscope.corpus.file_faults import CHANGED, MISSING, Fault, raise_for_faults
from rheoscope.corpus.input_texts import Input, Shard
from rheoscope.corpus.parquet_tables import import_parquet
from rheoscope.corpus.sealed_json import seal, unseal
from rheoscope.files import signature
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

MANIFEST_COPY = "manifest.copy.json"
PLAN = "plan.parquet"
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, RheoscopeError)
"""What reading a damaged record or manifest raises."""


@dataclass(frozen=True)
class Manifest:
    """The identity of a run. A different fingerprint is a different run. `plan` lists `shards` shards."""

    fingerprint: str
    job: Job
    model: dict[str, Any]
    inputs: list[Input]
    plan: CommittedFile
    shards: int

    def to_json(self) -> str:
        return seal({"written_by": signature()} | asdict(self))


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


def has_manifest(folder: Path) -> bool:
    """Whether a folder holds a corpus run, however damaged."""
    return any((folder / name).exists() for name in (MANIFEST, MANIFEST_COPY))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a run. Raises if either copy is damaged."""
    manifest, faults = check_manifest(folder)
    raise_for_faults(folder, faults)
    return manifest


def recover_manifest(folder: Path) -> Manifest:
    """The manifest of a run, from the copy that is intact."""
    return check_manifest(folder)[0]


def check_manifest(folder: Path) -> tuple[Manifest, list[Fault]]:
    """The manifest from the first intact copy, and the faults of the others. Raises if no copy is intact."""
    copies: dict[str, Manifest] = {}
    faults: list[Fault] = []
    for name in (MANIFEST, MANIFEST_COPY):
        try:
            copies[name] = _read_copy(folder / name)
        except FileNotFoundError:
            faults.append(Fault(name, MISSING))
        except READ_ERRORS:
            faults.append(Fault(name, CHANGED))
    if len({manifest.fingerprint for manifest in copies.values()}) > 1:
        run = _plan_fingerprint(folder)
        for name in [name for name, manifest in copies.items() if manifest.fingerprint != run]:
            del copies[name]
            faults.append(Fault(name, Message("belongs to another run")))
    if not copies:
        _raise_without_manifest(folder, faults)
    return next(iter(copies.values())), faults


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write both copies, unless they are there already."""
    text = manifest.to_json()
    for name in (MANIFEST_COPY, MANIFEST):
        path = folder / name
        if not path.is_file() or path.read_bytes() != text.encode():
            write_text(folder, name, text)


def _read_copy(path: Path) -> Manifest:
    content = unseal(path.read_bytes())
    del content["written_by"]
    parts: dict[str, Any] = {
        "job": job_from_mapping(content["job"]),
        "inputs": [Input(**entry) for entry in content["inputs"]],
        "plan": CommittedFile(**content["plan"]),
    }
    return Manifest(**content | parts)


def _plan_fingerprint(folder: Path) -> str | None:
    """The fingerprint of the run that the plan belongs to, if it can be read."""
    try:
        return str(import_parquet().read_schema(folder / PLAN).metadata[b"fingerprint"].decode())
    except (OSError, ValueError, KeyError, TypeError):  # errors of pyarrow are among these
        return None


def _raise_without_manifest(folder: Path, faults: list[Fault]) -> None:
    """Raise because no copy of the manifest can be used."""
    if not has_manifest(folder):
        raise RheoscopeError(
            Message("{folder} holds no corpus run", folder=str(folder)),
            Advice("", f"rheoscope corpus run --texts FILE --out {shlex.quote(str(folder))}"),
        )
    if not (folder / MANIFEST_COPY).exists():
        raise RheoscopeError(
            Message(
                "{folder} was written by an earlier version, or its manifest is damaged; run the corpus again in another folder",
                folder=str(folder),
            )
        )
    raise RheoscopeError(
        Message(
            "both copies of the manifest of {folder} are damaged; run the corpus again in another folder",
            folder=str(folder),
        )
    )
