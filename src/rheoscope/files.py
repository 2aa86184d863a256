"""Files are written whole or not at all, to a temporary name that is then renamed; and never over what others wrote, or are writing."""

import os
import re
import shutil
import socket
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, count, permutations
from pathlib import Path
from typing import Any

from rheoscope.shapes import RheoscopeError

SIGNED = re.compile(
    rb'\{\s*"written_by": "Rheoscope '
    rb'|<!doctype html><html lang="en"><meta name="generator" content="Rheoscope '
    rb"|\x89PNG.{0,500}?Software\0Rheoscope "
    rb"|analysis,(?:file,column,definition,unit,null,depends_on|setting,value,written_by)\n",
    re.DOTALL,
)
"""How files begin that this package signs: numbers, pages, pictures, the definitions beside tables."""


def signature() -> str:
    """What this package writes into its files, so that it may replace them later.

    >>> signature().split()[0]
    'Rheoscope'
    """
    from rheoscope import __version__

    return f"Rheoscope {__version__}"


def signed(path: Path) -> bool:
    """Whether this package wrote a file, as far as its first kilobyte says."""
    with path.open("rb") as file:
        return SIGNED.match(file.read(1024)) is not None


def write_report(path: Path, write: Callable[[Path], object]) -> str:
    """As `write_file`, but what others wrote is never replaced: a file of that name must be signed."""
    check_free(path)
    return write_file(path, write)


def write_file(path: Path, write: Callable[[Path], object]) -> str:
    """Let `write` fill a temporary file, move it to `path`, and say what happened ("wrote …" or "replaced …").

    A link is followed: the file that it leads to is replaced, the link stays.

    >>> import tempfile, pathlib
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_file(target, lambda p: p.write_text("x")).split()[0], target.read_text()
    ('wrote', 'x')
    """
    _check_file(path)
    with ExitStack() as stack:
        try:
            goal = _real(path)
            stack.enter_context(made(goal.parent))
            existed = goal.exists()
            temporary = stack.enter_context(whole_file(goal))
        except OSError as error:
            raise RheoscopeError(f"cannot write {path}: {error.strerror}; type a name in another directory") from error
        write(temporary)
    return f"{'replaced' if existed else 'wrote'} {path}"


def free_name(path: Path) -> Path:
    """The path itself, or the first of name-2, name-3, … that is not taken: nothing is overwritten.

    >>> free_name(Path("no such report.html")).name
    'no such report.html'
    """
    names = chain([path], (path.with_stem(f"{path.stem}-{at}") for at in count(2)))
    return next(name for name in names if not os.path.lexists(name))


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name to write to, beside `path`; it takes the place of `path` when everything went well."""
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
def made(directory: Path) -> Iterator[None]:
    """The directory is there, made with its parents where it was not, and `undone` if something fails inside."""
    with undone(directory):
        directory.mkdir(parents=True, exist_ok=True)
        yield


@contextmanager
def undone(directory: Path) -> Iterator[None]:
    """A directory that is not there now, and what is made of its parents, is gone again if something fails inside."""
    missing = [one for one in (directory, *directory.parents) if not one.exists()]
    try:
        yield
    except BaseException:
        if directory in missing:
            shutil.rmtree(directory, ignore_errors=True)
        for one in missing[1:]:
            with suppress(OSError):
                one.rmdir()
        raise


# One driver a folder

LOCK = ".lock"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Inside, no other process that asks for this works on the folder, which is made: a second one is refused in one line.

    The lock is the kernel's, so it ends with the process, however that ends. Where nothing else was written, a folder that was made
    for it goes again.

    >>> folder = Path(tempfile.mkdtemp())
    >>> with alone(folder), alone(folder):
    ...     pass
    Traceback (most recent call last):
    ...
    rheoscope.shapes.RheoscopeError: ... is being worked on by process ...; wait for it, or type another --out
    """
    hold = _lock()
    check_directory(folder)
    ours = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        try:
            hold(file)
        except OSError:
            file.seek(0)
            raise RheoscopeError(
                f"{folder} is being worked on by {file.read().strip() or 'another process'}; wait for it, or type another --out"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        try:
            yield
        finally:
            if ours and [one.name for one in folder.iterdir()] == [LOCK]:  # refused before anything was written
                (folder / LOCK).unlink()
                folder.rmdir()


def _lock() -> Callable[[Any], None]:
    """What takes a lock of the kernel's on an open file, or fails at once."""
    try:
        import fcntl
    except ImportError:
        raise RheoscopeError(
            "work that goes on in a folder is done on Linux or macOS, which lock files and sync directories; on Windows type it in WSL "
            "(what is finished can be read here)"
        ) from None
    return lambda file: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def strangers(folder: Path) -> list[Path]:
    """What lies in a folder, if it is there, but for hidden files."""
    return [one for one in folder.iterdir() if not one.name.startswith(".")] if folder.is_dir() else []


# Looked at before anything is computed


def check_outputs(files: Iterable[Path], tables: Path | None = None, read: Path | None = None) -> None:
    """Refuse names of files that cannot all be written: taken by others, not writable, two of them the same file.

    `tables` is a directory in which files end in .csv, `read` the file that the text comes from.
    """
    files = list(files)
    named = files if tables is None else [*files, tables]
    if read is not None:
        for path in named:
            if _same(path, read):
                raise RheoscopeError(f"{path} is the text that is read; type another name to write to")
    for at, path in enumerate(named):
        if any(_same(path, other) for other in named[:at]):
            raise RheoscopeError(f"{path.name} is named twice; type a name of its own for every file")
    for one, other in permutations(named, 2):
        if one is not tables and _real(one) in _real(other).parents:
            raise RheoscopeError(f"{one} cannot be a file and hold {other}; type another name for one of them")
    for path in files:
        if tables is not None and path.suffix.lower() == ".csv" and _same(path.parent, tables):
            raise RheoscopeError(f"{path} is among the tables of {tables}; type a name in another directory")
        check_free(path)


def check_free(path: Path) -> None:
    """Refuse a name to which no file can be written, and one where a file is that this package did not write.

    >>> import tempfile, pathlib
    >>> mine = pathlib.Path(tempfile.mkdtemp()) / "mine.html"
    >>> check_free(mine), mine.write_text("a page of my own") and None
    (None, None)
    >>> check_free(mine)
    Traceback (most recent call last):
    ...
    rheoscope.shapes.RheoscopeError: ...mine.html is there and was not written by Rheoscope; type another name
    """
    _check_file(path)
    goal = _real(path)
    try:
        if goal.exists() and not signed(goal):
            raise RheoscopeError(f"{path} is there and was not written by Rheoscope; type another name")
        if goal.exists() and not os.access(goal, os.W_OK):
            raise PermissionError(13, "it may not be changed")
    except OSError as error:
        raise RheoscopeError(f"cannot write {path}: {error.strerror}; type another name") from error
    check_directory(goal.parent, path)


def check_directory(directory: Path, asked: Path | None = None) -> None:
    """Refuse a directory that cannot be made or written to; `asked` is what is told, where it is a file in there."""
    asked = directory if asked is None else asked
    try:
        real = _real(directory)
        there = next(one for one in (real, *real.parents) if one.exists())
        if not there.is_dir():
            raise NotADirectoryError(20, f"{there} is a file")
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise RheoscopeError(f"cannot write {asked}: {error.strerror}; type a name in another directory") from error


def _check_file(path: Path) -> None:
    """Refuse directories, devices and links that lead in a circle."""
    try:
        goal = _real(path)
        if goal.is_dir():
            raise RheoscopeError(f"{path} is a directory, expected a file name; type {path / 'report.html'}")
        if os.path.lexists(goal) and not goal.is_file():
            raise RheoscopeError(f"{path} is no file that can be replaced; type another name")
    except OSError as error:
        raise RheoscopeError(f"cannot write {path}: {error.strerror}; type another name") from error


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _same(one: Path, other: Path) -> bool:
    """One file under two names; names that differ in case are one file on many disks."""
    with suppress(OSError):
        if one.samefile(other):
            return True
    return str(_real(one)).casefold() == str(_real(other)).casefold()


def job_settings(path: Path) -> dict[str, Any]:
    """What a TOML file behind `--job` says; a file that cannot be read is told in one line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RheoscopeError(f"there is no file {path}; type --job and the name of a TOML file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RheoscopeError(f"cannot read {path}: {error}; type --job and the name of a TOML file") from error
