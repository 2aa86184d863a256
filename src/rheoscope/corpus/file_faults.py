"""Faults: files of a run that are missing or not as they were written. Each has a name, a reason and a remedy."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rheoscope.corpus.durable_files import CommittedFile, content_digest, resume_advice
from rheoscope.messages.message import Message, join
from rheoscope.shapes import RheoscopeError

MISSING = Message("is missing")
CHANGED = Message("is not as it was written")
MAX_SHOWN = 5
"""The number of faults that an error names."""


@dataclass(frozen=True)
class Fault:
    """A damaged file of a run, by its path in the folder, and the shard that has to be computed again, if any."""

    path: str
    reason: Message
    shard: int | None = None

    def describe(self) -> Message:
        return Message("{path} {reason}", path=self.path, reason=self.reason)


class DamagedRunError(RheoscopeError):
    """Files of a run are damaged, so nothing is read from it until it is resumed."""


def raise_for_faults(folder: Path, faults: Sequence[Fault]) -> None:
    """Raise an error that names the damaged files, if there are any."""
    if not faults:
        return
    parts: list[str] = [fault.describe() for fault in faults[:MAX_SHOWN]]
    if len(faults) > MAX_SHOWN:
        parts.append(Message("and {n:,} more", n=len(faults) - MAX_SHOWN))
    raise DamagedRunError(
        Message("{folder} is damaged: {faults}", folder=str(folder), faults=join(", ", parts)), resume_advice(folder)
    )


def size_fault(folder: Path, file: CommittedFile) -> Message | None:
    """The reason why a file has the wrong size, if it has."""
    try:
        size = (folder / file.path).stat().st_size
    except OSError:
        return MISSING
    if size == file.size:
        return None
    return Message("has {size:,} bytes, expected {expected:,}", size=size, expected=file.size)


def content_fault(folder: Path, file: CommittedFile) -> Message | None:
    """The reason why a file is not the committed one, if it is not. Reads the whole file."""
    reason = size_fault(folder, file)
    if reason is not None:
        return reason
    try:
        return None if content_digest(folder / file.path) == file.digest else CHANGED
    except OSError as error:
        return Message("cannot be read: {reason}", reason=error.strerror or str(error))
