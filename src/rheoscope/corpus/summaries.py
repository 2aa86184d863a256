"""Summaries of a field per cell. They merge exactly, in any order and for any split of the texts.

Counts are integers. Sums are integer multiples of the smallest float32 (`statistics/exact_sums.py`). The bins of a
histogram are the values that bfloat16 distinguishes: the upper 16 bits of a float32, at most 0.8 % wide, the same
on every device. Examples are the largest and smallest values by (value, text id).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rheoscope.corpus.documents import Documents, document_sums, standard_error
from rheoscope.statistics.exact_sums import exact_sums, mean_and_sd

BINS_PER_CELL = 2**16
EXAMPLE_DTYPE = np.dtype([("cell", np.int64), ("value", np.float32), ("text", np.int64), ("token", np.int32)])
"""A text with its value and the token it refers to (−1: the whole text)."""


@dataclass(frozen=True, eq=False)
class Summary:
    """The summary of a field over `n_cells` cells.

    `texts` have a value and `missing` have none. `items` counts their values, one per token if the field has one
    per token. `total` and `squares` are sums over texts (means over tokens), and `documents` gives their standard
    errors. `bins` (cell · 65536 + bin, ascending) and `counts` are the histogram of the items. `most` and `least`
    are the examples.
    """

    texts: np.ndarray
    missing: np.ndarray
    items: np.ndarray
    total: list[int]
    squares: list[int]
    documents: Documents
    bins: np.ndarray
    counts: np.ndarray
    most: np.ndarray
    least: np.ndarray

    @property
    def n_cells(self) -> int:
        return len(self.texts)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean and standard deviation over texts, per cell."""
        cell_sums = zip(self.total, self.squares, self.texts.tolist(), strict=True)
        mean, sd = np.array([mean_and_sd(*sums) for sums in cell_sums]).reshape(-1, 2).T
        return mean, sd

    def standard_errors(self) -> np.ndarray:
        """The standard error of every mean, with documents as units. NaN for fewer than two documents."""
        documents = self.documents
        counts = [x.tolist() for x in (self.texts, documents.count, documents.sizes)]
        cell_sums = zip(self.total, *counts, documents.squares, documents.products, strict=True)
        return np.array([standard_error(*cell) for cell in cell_sums])


@dataclass(frozen=True, eq=False)
class FieldValues:
    """One field of some texts.

    `value` (text, cell) is float32, NaN where there is none. `largest` and `smallest` are the extremes of each
    text, with the tokens they refer to. `bins` and `counts` are the histogram of all items.
    """

    text_ids: np.ndarray
    value: np.ndarray
    largest: np.ndarray
    largest_token: np.ndarray
    smallest: np.ndarray
    smallest_token: np.ndarray
    bins: np.ndarray
    counts: np.ndarray


def summarise(field_values: FieldValues, top: int) -> Summary:
    """The summary of some texts.

    >>> x = np.float32([[1.0], [3.0], [np.nan]])
    >>> token = np.full(x.shape, -1, np.int32)
    >>> values = FieldValues(np.arange(3), x, x, token, x, token, np.int64([16256, 16448]), np.int64([1, 1]))
    >>> summary = summarise(values, top=1)
    >>> summary.moments()[0].tolist(), summary.missing.tolist(), summary.most["text"].tolist()
    ([2.0], [1], [1])
    """
    is_finite = np.isfinite(field_values.value)
    n_cells = field_values.value.shape[1]
    cell_index = np.broadcast_to(np.arange(n_cells), is_finite.shape)
    total, squares = exact_sums(
        field_values.value.T[is_finite.T], cell_index.T[is_finite.T], n_cells
    )  # in the order of cells, for memory locality
    items = np.bincount(field_values.bins // BINS_PER_CELL, field_values.counts, n_cells).astype(np.int64)

    def examples(value: np.ndarray, token: np.ndarray, sign: int) -> np.ndarray:
        sort_values = np.where(is_finite, sign * value, np.inf)
        threshold = (
            np.partition(sort_values, min(top, len(sort_values)) - 1, 0)[min(top, len(sort_values)) - 1]
            if top and len(sort_values)
            else -np.inf
        )
        is_candidate = is_finite & (sort_values <= threshold)  # the few that can be among the top
        records = np.empty(int(is_candidate.sum()), EXAMPLE_DTYPE)
        records["cell"], records["value"], records["token"] = (
            cell_index[is_candidate],
            value[is_candidate],
            token[is_candidate],
        )
        records["text"] = np.broadcast_to(field_values.text_ids[:, None], is_candidate.shape)[is_candidate]
        return _top_examples(records, top, sign)

    return Summary(
        texts=is_finite.sum(0),
        missing=(~is_finite).sum(0),
        items=items,
        total=total,
        squares=squares,
        documents=document_sums(field_values.text_ids, field_values.value, total, squares),
        bins=field_values.bins,
        counts=field_values.counts,
        most=examples(field_values.largest, field_values.largest_token, -1),
        least=examples(field_values.smallest, field_values.smallest_token, 1),
    )


def merge_parts(parts: Sequence[Summary], top: int) -> Summary:
    """Merge summaries.

    The result is bit-identical to the summary of all texts, as long as every document is in one part.
    """

    def concatenate_field(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])

    bins, counts = merge_bins(concatenate_field("bins"), concatenate_field("counts"))
    return Summary(
        texts=np.sum([part.texts for part in parts], 0),
        missing=np.sum([part.missing for part in parts], 0),
        items=np.sum([part.items for part in parts], 0),
        total=[sum(cell) for cell in zip(*(part.total for part in parts), strict=True)],
        squares=[sum(cell) for cell in zip(*(part.squares for part in parts), strict=True)],
        documents=Documents.merge([part.documents for part in parts]),
        bins=bins,
        counts=counts,
        most=_top_examples(concatenate_field("most"), top, -1),
        least=_top_examples(concatenate_field("least"), top, 1),
    )


def merge_bins(bins: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A histogram with every bin once, in ascending order."""
    order = np.argsort(bins, kind="stable")
    bins, counts = bins[order], counts[order]
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    return bins[starts], np.add.reduceat(counts, starts) if len(starts) else counts


def _top_examples(records: np.ndarray, top: int, sign: int) -> np.ndarray:
    """The first `top` examples of every cell: by value (largest first if `sign` is −1), then by text and token."""
    records = records[np.lexsort((records["token"], records["text"], sign * records["value"], records["cell"]))]
    starts = np.searchsorted(records["cell"], records["cell"])
    return records[np.arange(len(records)) - starts < top]


# Quantiles


def bin_edges(bins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The edges of bins, by their number within a cell.

    >>> [float(end[0]) for end in bin_edges(np.array([49152 - 128]))]
    [1.0, 1.0078125]
    """
    raw = (np.asarray(bins, np.int64) - BINS_PER_CELL // 2).astype(np.int32)
    first_edge, second_edge = ((x << 16).view(np.float32).astype(np.float64) for x in (raw, raw + 1))
    return np.minimum(first_edge, second_edge), np.maximum(first_edge, second_edge)


def quantiles(summary: Summary, fractions: Sequence[float]) -> np.ndarray:
    """Quantiles (cell, fraction) of the items, at the centre of their bins; NaN if there are none."""
    result = np.full((summary.n_cells, len(fractions)), np.nan)
    bin_cells, low, high = summary.bins // BINS_PER_CELL, *bin_edges(summary.bins % BINS_PER_CELL)
    ends = np.searchsorted(bin_cells, np.arange(summary.n_cells + 1))
    for cell_index in range(summary.n_cells):
        bin_indices = np.arange(ends[cell_index], ends[cell_index + 1])
        if len(bin_indices):
            order = bin_indices[np.argsort(low[bin_indices], kind="stable")]
            rank = np.searchsorted(np.cumsum(summary.counts[order]), np.asarray(fractions) * summary.items[cell_index])
            selected = order[np.minimum(rank, len(order) - 1)]
            result[cell_index] = (low[selected] + high[selected]) / 2
    return result


# As a table


def to_columns(summary: Summary) -> dict[str, Any]:
    """A row per cell; values with several numbers per cell become lists."""
    import pyarrow as pa

    def list_column(cell: np.ndarray, x: np.ndarray) -> Any:
        ends = np.searchsorted(cell, np.arange(summary.n_cells + 1)).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(ends), pa.array(np.ascontiguousarray(x)))

    mean, sd = summary.moments()
    data: dict[str, Any] = {"cell": np.arange(summary.n_cells), "texts": summary.texts, "missing": summary.missing}
    data |= {"items": summary.items, "mean": mean, "sd": sd}
    data |= {
        name: pa.array([_int_to_bytes(x) for x in getattr(summary, name)], pa.binary()) for name in ("total", "squares")
    }
    data |= {
        f"document_{name}": x for name, x in (("count", summary.documents.count), ("sizes", summary.documents.sizes))
    }
    data |= {
        f"document_{name}": pa.array([_int_to_bytes(x) for x in getattr(summary.documents, name)], pa.binary())
        for name in ("squares", "products")
    }
    cell = summary.bins // BINS_PER_CELL
    data |= {
        "bins": list_column(cell, (summary.bins % BINS_PER_CELL).astype(np.int32)),
        "counts": list_column(cell, summary.counts),
    }
    for name in ("most", "least"):
        examples = getattr(summary, name)
        data |= {f"{name}_{part}": list_column(examples["cell"], examples[part]) for part in ("value", "text", "token")}
    return data


def from_columns(table: Any) -> Summary:
    """The summary stored in such a pyarrow table."""

    def read_lists(name: str) -> tuple[np.ndarray, np.ndarray]:
        column = table[name].combine_chunks()
        lengths = np.diff(column.offsets.to_numpy())
        return np.repeat(np.arange(len(lengths)), lengths), column.flatten().to_numpy()

    def examples(name: str) -> np.ndarray:
        cell, text = read_lists(f"{name}_text")
        records = np.empty(len(text), EXAMPLE_DTYPE)
        records["cell"], records["text"] = cell, text
        records["value"], records["token"] = read_lists(f"{name}_value")[1], read_lists(f"{name}_token")[1]
        return records

    def read_integers(name: str) -> list[int]:
        return [int.from_bytes(x, "big", signed=True) for x in table[name].to_pylist()]

    cell, bins = read_lists("bins")
    return Summary(
        texts=table["texts"].to_numpy(),
        missing=table["missing"].to_numpy(),
        items=table["items"].to_numpy(),
        total=read_integers("total"),
        squares=read_integers("squares"),
        documents=Documents(
            table["document_count"].to_numpy(),
            table["document_sizes"].to_numpy(),
            read_integers("document_squares"),
            read_integers("document_products"),
        ),
        bins=cell * BINS_PER_CELL + bins,
        counts=read_lists("counts")[1],
        most=examples("most"),
        least=examples("least"),
    )


def _int_to_bytes(x: int) -> bytes:
    return x.to_bytes(x.bit_length() // 8 + 1, "big", signed=True)
