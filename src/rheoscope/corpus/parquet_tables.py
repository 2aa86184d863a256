"""Answers as Parquet: one table for each analysis and set of axes, a row a place, a column a field."""

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.corpus.field_cells import Cells
from rheoscope.files import atomic_file
from rheoscope.report.tables import SCALAR_TABLE
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import pyarrow


MANIFEST = "manifest.json"


class DiskFullError(RheoscopeError):
    """There is no room on the disk; there may be some soon."""


def import_parquet() -> Any:
    """pyarrow.parquet, or one line that says how to get it."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise RheoscopeError(
            "a corpus is kept in Parquet, and pyarrow is not here; type pip install 'rheoscope[corpus]'"
        ) from error
    return pyarrow.parquet


def build_tables(texts: Sequence[int], fields: Mapping[str, Cells]) -> "dict[str, pyarrow.Table]":
    """Fields of the same axes side by side, by the name of the table: layer_head, step, step_token, text where there is none."""
    groups: dict[tuple[str, ...], dict[str, np.ndarray]] = {}
    for name, cells in fields.items():
        if cells.value is not None:
            groups.setdefault(cells.cell_dims, {})[name] = cells.value
        if cells.token_values is not None:
            groups.setdefault(cells.token_dims, {})[name] = cells.token_values
    return {"_".join(dims) or SCALAR_TABLE: _build_table(texts, dims, columns) for dims, columns in groups.items()}


def _build_table(texts: Sequence[int], dims: tuple[str, ...], columns: Mapping[str, np.ndarray]) -> "pyarrow.Table":
    import pyarrow as pa

    order = np.argsort(np.asarray(texts, np.int64), kind="stable")
    shape = next(iter(columns.values())).shape[1:]
    indices = np.indices(shape).astype(np.int32).reshape(len(dims), -1) if dims else np.zeros((0, 1), np.int32)
    data = {"text": np.repeat(np.asarray(texts, np.int64)[order], indices.shape[1])}
    data |= {dim: np.tile(index, len(texts)) for dim, index in zip(dims, indices, strict=True)}
    data |= {name: x[order].reshape(-1) for name, x in columns.items()}
    table = pa.table(data)
    return table.filter(_has_value(data, columns)) if "token" in dims else table


def _has_value(data: Mapping[str, np.ndarray], columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Rows of tokens that some field has a number for; the others are padding."""
    return np.any([~np.isnan(data[name]) if data[name].dtype.kind == "f" else data[name] != -1 for name in columns], 0)


def write_table(path: Path, table: "pyarrow.Table") -> None:
    """A table as a file that is there whole or not at all, whatever happens: temporary name, fsync, rename, fsync of the folder."""
    try:
        _make_directory(path.parent)
        with atomic_file(path) as temporary:
            import_parquet().write_table(table, temporary, compression="zstd", write_statistics=True)
            fsync_path(temporary)
        fsync_path(path.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                f"the disk is full; make room, then type rheoscope corpus resume {run_folder(path)}"
            ) from error
        problem = f"cannot write {path}: {error.strerror or error}"
        raise RheoscopeError(
            f"{problem}; put that right, then type rheoscope corpus resume {run_folder(path)}"
        ) from error


def run_folder(path: Path) -> Path:
    """The folder of the run that a file belongs to."""
    return next((folder for folder in path.parents if (folder / MANIFEST).exists()), path.parent)


def _make_directory(folder: Path) -> None:
    """The folder is there, and stays."""
    if not folder.is_dir():
        _make_directory(folder.parent)
        folder.mkdir(exist_ok=True)
        fsync_path(folder.parent)


def fsync_path(path: Path) -> None:
    """Make what was written stay, whatever happens to the machine."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
