"""Parquet tables of results: one table per analysis and set of axes, one row per cell, one column per field."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.corpus.durable_files import CommittedFile, write_durably
from rheoscope.corpus.field_cells import Cells
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.report.tables import SCALAR_TABLE
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import pyarrow

INSTALL_CORPUS = Advice("", "pip install 'rheoscope[corpus]'")


def import_parquet() -> Any:
    """The module pyarrow.parquet, or an error that says how to install it."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise RheoscopeError(Message("corpus runs need the package pyarrow"), INSTALL_CORPUS) from error
    return pyarrow.parquet


def build_tables(texts: Sequence[int], fields: Mapping[str, Cells]) -> "dict[str, pyarrow.Table]":
    """Fields with the same axes as one table, named after the axes: layer_head, step, step_token, or text if there are none."""
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
    """Rows of tokens with a value in at least one field; the others are padding."""
    return np.any([~np.isnan(data[name]) if data[name].dtype.kind == "f" else data[name] != -1 for name in columns], 0)


def write_table(folder: Path, name: str, table: "pyarrow.Table") -> CommittedFile:
    """Write a table of a run atomically and durably."""

    def write(path: Path) -> None:
        import_parquet().write_table(table, path, compression="zstd", write_statistics=True)

    return write_durably(folder, name, write)
