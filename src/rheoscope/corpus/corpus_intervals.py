"""The 95 % intervals of a corpus run. The segments of a document are one unit.

Up to `MAX_RESAMPLED_DOCUMENTS` documents are resampled (bootstrap-t), from the rows of the run. The mean of more is nearly normal, so
that Student's t of the merged sums is enough. A field without rows per text also uses Student's t.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rheoscope.corpus.merged_summary import FieldSummary
from rheoscope.corpus.segments import MAX_SEGMENTS
from rheoscope.corpus.summaries import Summary
from rheoscope.report.tables import SCALAR_TABLE
from rheoscope.statistics.intervals import MIN_UNITS, bootstrap_t_interval, student_half_width

MAX_RESAMPLED_DOCUMENTS = 200
MAX_RESAMPLED_TEXTS = 20_000
"""The largest number of rows per cell that is read for an interval."""
Ends = tuple[np.ndarray, np.ndarray]
"""The lower and upper end of the interval of every cell."""
RunSql = Callable[[str], Any]


def field_interval(
    run_sql: RunSql, tables: dict[str, list[str]], analysis: str, field: str, data: FieldSummary
) -> Ends:
    """The interval of the mean of every cell of a field; NaN for fewer than four documents.

    `tables` lists the columns of every table of the run, and `run_sql` queries them.
    """
    summary, table = data.summary, f"{analysis}.{'_'.join(data.dims) or SCALAR_TABLE}"
    n_documents, n_texts = int(summary.documents.count.max(initial=0)), int(summary.texts.max(initial=0))
    is_small = n_documents <= MAX_RESAMPLED_DOCUMENTS and n_texts <= MAX_RESAMPLED_TEXTS
    if n_documents < MIN_UNITS or not is_small or field not in tables.get(table, ()):
        return student_ends(summary)
    axes = "".join(f'"{dim}", ' for dim in data.dims)
    rows = run_sql(f'SELECT text, {axes}"{field}" AS value FROM {table} ORDER BY text').fetchnumpy()
    cells = (
        np.ravel_multi_index([rows[dim] for dim in data.dims], data.shape) if data.dims else np.zeros_like(rows["text"])
    )
    return bootstrap_ends(np.asarray(rows["text"]), cells, np.ma.filled(rows["value"], np.nan), summary.n_cells)


def student_ends(summary: Summary) -> Ends:
    """Student's t from the merged sums, with one degree of freedom less than documents."""
    mean, errors, count = summary.moments()[0], summary.standard_errors(), summary.documents.count
    half_width = np.full(len(mean), np.nan)
    for n_documents in set(count[count >= MIN_UNITS].tolist()):
        has_count = count == n_documents
        half_width[has_count] = student_half_width(torch.from_numpy(errors[has_count]), n_documents - 1).numpy()
    return mean - half_width, mean + half_width


def bootstrap_ends(texts: np.ndarray, cells: np.ndarray, values: np.ndarray, n_cells: int) -> Ends:
    """The bootstrap-t over documents, from one row per text and cell in the order of texts.

    >>> ends = bootstrap_ends(np.arange(5) * MAX_SEGMENTS, np.zeros(5, int), np.array([1.0, 2.0, 3.0, 4.0, np.nan]), 1)
    >>> [round(float(end[0])) for end in ends]
    [-1, 6]
    """
    documents, document_index = np.unique(texts // MAX_SEGMENTS, return_inverse=True)
    is_finite = np.isfinite(values)
    unit_index, n_entries = (cells * len(documents) + document_index)[is_finite], n_cells * len(documents)
    sums = np.bincount(unit_index, values[is_finite].astype(np.float64), n_entries).reshape(n_cells, -1)
    sizes = np.bincount(unit_index, minlength=n_entries).reshape(n_cells, -1)
    ends = np.full((2, n_cells), np.nan)
    patterns, pattern_index = np.unique(sizes > 0, axis=0, return_inverse=True)
    for index, has_value in enumerate(patterns):  # cells without a value in the same documents
        rows = pattern_index.reshape(-1) == index
        unit_sums, unit_sizes = (torch.from_numpy(x[rows][:, has_value].astype(np.float64)) for x in (sums, sizes))
        ends[:, rows] = np.stack([end.numpy() for end in bootstrap_t_interval(unit_sums, unit_sizes)])
    return ends[0], ends[1]
