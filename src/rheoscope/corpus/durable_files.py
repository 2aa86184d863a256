"""Durable writes of the files of a run, each with the size and the digest to which it is held from then on."""

import errno
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b, file_digest
from pathlib import Path

from rheoscope.files import atomic_file
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class CommittedFile:
    """A file of a run as it was written: its path in the folder of the run, its size and its digest."""

    path: str
    size: int
    digest: str


class DiskFullError(RheoscopeError):
    """The disk is full; writing may succeed later."""


def content_digest(path: Path) -> str:
    """A hash of the bytes of a file."""
    with path.open("rb") as file:
        return file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()


def write_durably(folder: Path, name: str, write: Callable[[Path], object]) -> CommittedFile:
    """Write a file of a run atomically and durably: temporary name, fsync, rename, fsync of the folder."""
    path = folder / name
    try:
        _make_directory(path.parent)
        with atomic_file(path) as temporary:
            write(temporary)
            fsync_path(temporary)
            committed = CommittedFile(name, temporary.stat().st_size, content_digest(temporary))
        fsync_path(path.parent)
        return committed
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                Message("the disk is full; free space and resume the run"), resume_advice(folder)
            ) from error
        raise RheoscopeError(
            Message("cannot write {path}: {reason}", path=str(path), reason=error.strerror or str(error)),
            resume_advice(folder),
        ) from error


def write_text(folder: Path, name: str, text: str) -> CommittedFile:
    """Write a text file of a run."""
    return write_durably(folder, name, lambda path: path.write_bytes(text.encode()))


def resume_advice(folder: Path) -> Advice:
    """The command that resumes a run."""
    return Advice("", f"rheoscope corpus resume {shlex.quote(str(folder))}")


def _make_directory(folder: Path) -> None:
    """Create a folder durably."""
    if not folder.is_dir():
        _make_directory(folder.parent)
        folder.mkdir(exist_ok=True)
        fsync_path(folder.parent)


def fsync_path(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
