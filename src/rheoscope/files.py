"""Atomic writes, checks of output paths and a lock per folder. Foreign files are never replaced."""

import errno
import os
import re
import shlex
import shutil
import socket
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, count, permutations
from pathlib import Path
from typing import Any

from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

SIGNATURE_PATTERN = re.compile(
    rb'\{\s*"written_by": "Rheoscope '
    rb'|<!doctype html><html lang="[\w-]+"><meta name="generator" content="Rheoscope '
    rb"|\x89PNG.{0,500}?Software\0Rheoscope "
    rb"|analysis,(?:file,column,definition,unit,null,depends_on|setting,value,written_by)\n",
    re.DOTALL,
)
"""The first bytes of every file that this package signs: JSON, HTML pages, PNG images and tables of definitions."""


def signature() -> str:
    """The signature in files of this package. Only signed files are replaced later.

    >>> signature().split()[0]
    'Rheoscope'
    """
    from rheoscope import __version__

    return f"Rheoscope {__version__}"


def is_signed(path: Path) -> bool:
    """Whether the first kilobyte of a file has this package's signature."""
    with path.open("rb") as file:
        return SIGNATURE_PATTERN.match(file.read(1024)) is not None


def write_report(path: Path, write: Callable[[Path], object]) -> str:
    """Like `write_file`, but a foreign file is not replaced and every failure is a RheoscopeError."""
    check_writable(path)
    try:
        return write_file(path, write)
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_file(path: Path, write: Callable[[Path], object]) -> str:
    """Let `write` fill a temporary file, move it to `path`, and return "wrote …" or "replaced …".

    A symbolic link is followed: its target is replaced and the link stays.

    >>> import tempfile, pathlib
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_file(target, lambda p: p.write_text("x")).split()[0], target.read_text()
    ('wrote', 'x')
    """
    _check_file(path)
    with ExitStack() as stack:
        try:
            target = _real_path(path)
            stack.enter_context(created_files(target.parent))
            existed = target.exists()
            temporary = stack.enter_context(atomic_file(target))
        except OSError as error:
            raise _cannot_write(path, error) from error
        write(temporary)
    return Message("replaced {path}", path=str(path)) if existed else Message("wrote {path}", path=str(path))


def write_together(directory: Path, texts: Mapping[str, str]) -> None:
    """Write several files into a directory: all of them or none.

    All contents go to temporary files first. If anything fails, every file is as it was before.
    """
    try:
        with created_files(directory), tempfile.TemporaryDirectory(prefix=".tables-", dir=directory) as name:
            folder = Path(name)
            for file, text in texts.items():
                temporary = folder / file
                temporary.write_text(text, encoding="utf-8", newline="")
                temporary.chmod(0o644)
            _move_together(folder, directory, list(texts))
    except OSError as error:
        raise _cannot_write(directory, error) from error


def _move_together(folder: Path, directory: Path, files: list[str]) -> None:
    """Move files from `folder` to `directory`. If one move fails, undo the others."""
    backups = folder / ".replaced"
    backups.mkdir()
    replaced_files = [file for file in files if (directory / file).exists()]
    moved_files: list[str] = []
    try:
        for file in replaced_files:
            _link_or_copy(_real_path(directory / file), backups / file)
        for file in files:
            (folder / file).replace(_real_path(directory / file))
            moved_files.append(file)
    except BaseException:
        for file in moved_files:
            target = _real_path(directory / file)
            with suppress(OSError):
                target.unlink()
                if file in replaced_files:
                    _link_or_copy(backups / file, target)
        raise


def _link_or_copy(source: Path, target: Path) -> None:
    """A second name for a file, or a copy where the file system has no links."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copy2(source, target)


def unused_name(path: Path) -> Path:
    """`path`, or the first unused one of name-2, name-3, …

    >>> unused_name(Path("no such report.html")).name
    'no such report.html'
    """
    candidates = chain([path], (path.with_stem(f"{path.stem}-{number}") for number in count(2)))
    return next(name for name in candidates if not os.path.lexists(name))


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary file in the directory of `path`. It replaces `path` if the block succeeds."""
    handle, name = tempfile.mkstemp(suffix=path.suffix[:20], prefix=f".{path.stem[:40]}-", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def created_files(directory: Path) -> Iterator[None]:
    """Create a directory and its parents; `remove_created` deletes them if the block fails."""
    with remove_created(directory):
        directory.mkdir(parents=True, exist_ok=True)
        yield


@contextmanager
def remove_created(directory: Path) -> Iterator[None]:
    """If the block fails, delete `directory` and those of its parents that did not exist before."""
    missing_directories = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        yield
    except BaseException:
        if directory in missing_directories:
            shutil.rmtree(directory, ignore_errors=True)
        for path in missing_directories[1:]:
            with suppress(OSError):
                path.rmdir()
        raise


# One process per folder

LOCK_NAME = ".lock"


@contextmanager
def directory_lock(folder: Path) -> Iterator[None]:
    """Lock a folder for this process and create it if needed. A second process gets an error of one line.

    The kernel holds the lock, so it ends with the process. If nothing was written, a newly created folder is removed.

    >>> folder = Path(tempfile.mkdtemp())
    >>> with directory_lock(folder), directory_lock(folder):
    ...     pass
    Traceback (most recent call last):
    ...
    rheoscope.shapes.RheoscopeError: ... is in use by process ..., so wait until it ends or choose another folder; type out=...
    """
    acquire_lock = _lock_function()
    check_directory(folder)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_NAME).open("a+", encoding="utf-8") as file:
        try:
            acquire_lock(file)
        except OSError:
            file.seek(0)
            raise _in_use(folder, file.read().strip()) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        try:
            yield
        finally:
            # nothing but the lock was written
            if is_new and [path.name for path in folder.iterdir()] == [LOCK_NAME]:
                (folder / LOCK_NAME).unlink()
                folder.rmdir()


def _in_use(folder: Path, owner: str) -> RheoscopeError:
    """The error for a folder that another process has locked; `owner` is the text of its lock file."""
    advice = use(out=str(unused_name(folder)))
    if not owner:
        message = Message(
            "{folder} is in use by another process, so wait until it ends or choose another folder", folder=str(folder)
        )
        return RheoscopeError(message, advice)
    message = Message(
        "{folder} is in use by {owner}, so wait until it ends or choose another folder", folder=str(folder), owner=owner
    )
    return RheoscopeError(message, advice)


def _lock_function() -> Callable[[Any], None]:
    """A function that locks an open file through the kernel, or fails at once."""
    try:
        import fcntl
    except ImportError:
        raise RheoscopeError(
            Message("a run locks its folder, which Windows cannot do: run it in WSL, on Linux or on macOS")
        ) from None
    return lambda file: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def foreign_files(folder: Path) -> list[Path]:
    """The files in a folder, if it exists, except hidden ones."""
    return [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []


# Checks before anything is computed


def check_outputs(files: Iterable[Path], table_directory: Path | None = None, input_file: Path | None = None) -> None:
    """Raise if the outputs cannot all be written: foreign files, no permission, or one file under two names.

    `table_directory` receives .csv files, and `input_file` is the text that is read.
    """
    files = list(files)
    outputs = files if table_directory is None else [*files, table_directory]
    if input_file is not None:
        for path in outputs:
            if _is_same_file(path, input_file):
                raise RheoscopeError(
                    Message("{path} is the input text and would be overwritten", path=str(path)), _instead(path)
                )
    for index, path in enumerate(outputs):
        if any(_is_same_file(path, earlier) for earlier in outputs[:index]):
            numbered_path = path.parent / f"{path.stem or 'report'}-2{path.suffix}"
            raise RheoscopeError(
                Message("two outputs have the name {path}", path=path.name or str(path)), _instead(numbered_path)
            )
    for outer, inner in permutations(outputs, 2):
        if outer is not table_directory and _real_path(outer) in _real_path(inner).parents:
            raise RheoscopeError(
                Message(
                    "{outer} cannot be both a file and the directory of {inner}", outer=str(outer), inner=str(inner)
                ),
                _instead(Path(inner.name)),
            )
    for path in files:
        if (
            table_directory is not None
            and path.suffix.lower() == ".csv"
            and _is_same_file(path.parent, table_directory)
        ):
            raise RheoscopeError(
                Message(
                    "{path} is reserved for the tables of {directory}", path=str(path), directory=str(table_directory)
                ),
                use(csv=f"{table_directory}-tables"),
            )
        check_writable(path)


def check_writable(path: Path) -> None:
    """Raise if no file can be written to `path`, or if a file exists there that this package did not write.

    >>> import tempfile, pathlib
    >>> mine = pathlib.Path(tempfile.mkdtemp()) / "mine.html"
    >>> check_writable(mine), mine.write_text("a page of my own") and None
    (None, None)
    >>> check_writable(mine)
    Traceback (most recent call last):
    ...
    rheoscope.shapes.RheoscopeError: ...mine.html exists and was not written by Rheoscope; type '...mine-2.html'
    """
    _check_file(path)
    target = _real_path(path)
    try:
        if target.exists() and not is_signed(target):
            raise foreign_file_error(path)
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, "the file is read-only")
    except OSError as error:
        raise _cannot_write(path, error) from error
    check_directory(target.parent, path)


def check_directory(directory: Path, reported_path: Path | None = None) -> None:
    """Raise if a directory cannot be created or written to; the error names `reported_path`, a file in it."""
    reported_path = directory if reported_path is None else reported_path
    try:
        real_path = _real_path(directory)
        nearest_parent = next(parent for parent in (real_path, *real_path.parents) if parent.exists())
        if not nearest_parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{nearest_parent} is a file")
        with tempfile.TemporaryFile(dir=nearest_parent):
            pass
    except OSError as error:
        raise _cannot_write(reported_path, error) from error


def foreign_file_error(path: Path) -> RheoscopeError:
    """The error for a file that exists and that this package did not write."""
    return RheoscopeError(Message("{path} exists and was not written by Rheoscope", path=str(path)), _instead(path))


DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def _cannot_write(path: Path, error: OSError) -> RheoscopeError:
    """The error for a path that the system refuses, with its reason."""
    message = Message("cannot write {path}: {reason}", path=str(path), reason=error.strerror or str(error))
    if error.errno in DISK_FULL:
        return RheoscopeError(message, Advice("", f"df -h {shlex.quote(str(path.absolute().parent))}"))
    return RheoscopeError(message, _instead(Path.home() / f"rheoscope{path.suffix[:20]}"))


def _instead(path: Path) -> Advice:
    """Advice to use this path, or the next unused one."""
    free_path = str(unused_name(path))
    return Advice(repr(free_path), shlex.quote(free_path))


def _check_file(path: Path) -> None:
    """Raise for directories, devices and circular links."""
    try:
        target = _real_path(path)
        if target.is_dir():
            raise RheoscopeError(
                Message("{path} is a directory, expected a file name", path=str(path)), _instead(path / "report.html")
            )
        if os.path.lexists(target) and not target.is_file():
            raise RheoscopeError(
                Message("{path} is not a regular file", path=str(path)), _instead(Path.home() / "report.html")
            )
    except OSError as error:
        raise _cannot_write(path, error) from error


def _real_path(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _is_same_file(first: Path, second: Path) -> bool:
    """Whether two names refer to one file. Names that differ only in case count as one, as on many disks."""
    with suppress(OSError):
        if first.samefile(second):
            return True
    return str(_real_path(first)).casefold() == str(_real_path(second)).casefold()


def read_job_file(path: Path) -> dict[str, Any]:
    """The content of a TOML file (option `--job`)."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RheoscopeError(
            Message("there is no file {path}, expected a TOML file", path=str(path)), Advice("", "--job job.toml")
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RheoscopeError(
            Message("cannot read {path}, expected a TOML file: {reason}", path=str(path), reason=str(error)),
            Advice("", "--job job.toml"),
        ) from error
