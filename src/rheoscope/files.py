"""Files are written whole or not at all: to a temporary name beside the target, then renamed."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, count
from pathlib import Path

from rheoscope.shapes import RheoscopeError


def write_file(path: Path, write: Callable[[Path], object]) -> str:
    """Let `write` fill a temporary file, move it to `path`, and say what happened ("wrote …" or "replaced …").

    >>> import tempfile, pathlib
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_file(target, lambda p: p.write_text("x")).split()[0], target.read_text()
    ('wrote', 'x')
    """
    if path.is_dir():
        raise RheoscopeError(f"{path} is a directory, expected a file name; type {path / 'report.html'}")
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            existed = path.exists()
            temporary = stack.enter_context(whole_file(path))
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
    return next(name for name in names if not name.exists())


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name to write to, beside `path`; it takes the place of `path` when everything went well."""
    handle, name = tempfile.mkstemp(suffix=path.suffix, prefix=f".{path.stem}-", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
