"""Answers as Parquet: one table for each analysis and set of axes, a row a place, a column a field."""

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.corpus.field_cells import Cells
from rheoscope.files import whole_file
from rheoscope.report.tables import SCALAR
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import pyarrow


MANIFEST = "manifest.json"


class FullError(RheoscopeError):
    """There is no room on the disk; there may be some soon."""


def parquet() -> Any:
    """pyarrow.parquet, or one line that says how to get it."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise RheoscopeError(
            "a corpus is kept in Parquet, and pyarrow is not here; type pip install 'rheoscope[corpus]'"
        ) from error
    return pyarrow.parquet


def tables(texts: Sequence[int], fields: Mapping[str, Cells]) -> "dict[str, pyarrow.Table]":
    """Fields of the same axes side by side, by the name of the table: layer_head, step, step_token, text where there is none."""
    groups: dict[tuple[str, ...], dict[str, np.ndarray]] = {}
    for name, one in fields.items():
        if one.value is not None:
            groups.setdefault(one.kept, {})[name] = one.value
        if one.each is not None:
            groups.setdefault(one.dims, {})[name] = one.each
    return {"_".join(dims) or SCALAR: _table(texts, dims, columns) for dims, columns in groups.items()}


def _table(texts: Sequence[int], dims: tuple[str, ...], columns: Mapping[str, np.ndarray]) -> "pyarrow.Table":
    import pyarrow as pa

    order = np.argsort(np.asarray(texts, np.int64), kind="stable")
    shape = next(iter(columns.values())).shape[1:]
    places = np.indices(shape).astype(np.int32).reshape(len(dims), -1) if dims else np.zeros((0, 1), np.int32)
    found = {"text": np.repeat(np.asarray(texts, np.int64)[order], places.shape[1])}
    found |= {dim: np.tile(place, len(texts)) for dim, place in zip(dims, places, strict=True)}
    found |= {name: x[order].reshape(-1) for name, x in columns.items()}
    table = pa.table(found)
    return table.filter(_there(found, columns)) if "token" in dims else table


def _there(found: Mapping[str, np.ndarray], columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Rows of tokens that some field has a number for; the others are padding."""
    return np.any(
        [~np.isnan(found[name]) if found[name].dtype.kind == "f" else found[name] != -1 for name in columns], 0
    )


def write(path: Path, table: "pyarrow.Table") -> None:
    """A table as a file that is there whole or not at all, whatever happens: temporary name, fsync, rename, fsync of the folder."""
    try:
        _make(path.parent)
        with whole_file(path) as temporary:
            parquet().write_table(table, temporary, compression="zstd", write_statistics=True)
            sync(temporary)
        sync(path.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FullError(f"the disk is full; make room, then type rheoscope corpus resume {run_of(path)}") from error
        told = f"cannot write {path}: {error.strerror or error}"
        raise RheoscopeError(f"{told}; put that right, then type rheoscope corpus resume {run_of(path)}") from error


def run_of(path: Path) -> Path:
    """The folder of the run that a file belongs to."""
    return next((folder for folder in path.parents if (folder / MANIFEST).exists()), path.parent)


def _make(folder: Path) -> None:
    """The folder is there, and stays."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def sync(path: Path) -> None:
    """Make what was written stay, whatever happens to the machine."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
