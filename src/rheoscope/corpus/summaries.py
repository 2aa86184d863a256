"""Summaries of a field, cell by cell (of every head, of every layer): they merge exactly, whatever the order and the split.

Counts are whole numbers. Sums are whole numbers of the smallest float32 (`sums.py`). The bins of a histogram are the
numbers that bfloat16 can tell apart: the upper 16 bits of a float32, at most 0.8 % wide, the same on every device. Examples are the
largest and the smallest by (value, text id).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rheoscope.corpus.documents import Documents, error_of_mean, of_documents
from rheoscope.statistics.exact_sums import exact_sums, mean_and_sd

BINS = 2**16
EXAMPLE = np.dtype([("cell", np.int64), ("value", np.float32), ("text", np.int64), ("token", np.int32)])
"""A text beside its number, and the token that it is about (−1: all of it)."""


@dataclass(frozen=True, eq=False)
class Summary:
    """What is kept of a field in `cells` places.

    `texts` have a number, `missing` have none; `items` are their numbers, of every token where the field has one for every token.
    `total` and `squares` are those of one number a text (the mean over its tokens), and `documents` tell how sure their mean is. `bins`
    (cell · 65536 + bin, rising) and `counts` are the histogram of the items; `most` and `least` the examples.
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
    def cells(self) -> int:
        return len(self.texts)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation over texts, of every cell."""
        each = zip(self.total, self.squares, self.texts.tolist(), strict=True)
        mean, sd = np.array([mean_and_sd(*one) for one in each]).reshape(-1, 2).T
        return mean, sd

    def errors(self) -> np.ndarray:
        """The standard error of every mean, pieces of one document taken together; NaN where there are fewer than two documents."""
        one = self.documents
        counts = [x.tolist() for x in (self.texts, one.count, one.sizes)]
        each = zip(self.total, *counts, one.squares, one.products, strict=True)
        return np.array([error_of_mean(*cell) for cell in each])


@dataclass(frozen=True, eq=False)
class Numbers:
    """One field of some texts: `value` (text, cell) float32, NaN where there is none; the largest and the smallest number of each text
    and the token that each is about; the histogram of all items."""

    text: np.ndarray
    value: np.ndarray
    largest: np.ndarray
    largest_token: np.ndarray
    smallest: np.ndarray
    smallest_token: np.ndarray
    bins: np.ndarray
    counts: np.ndarray


def summary(numbers: Numbers, top: int) -> Summary:
    """What is kept of some texts.

    >>> x = np.float32([[1.0], [3.0], [np.nan]])
    >>> token = np.full(x.shape, -1, np.int32)
    >>> one = summary(Numbers(np.arange(3), x, x, token, x, token, np.int64([16256, 16448]), np.int64([1, 1])), top=1)
    >>> one.moments()[0].tolist(), one.missing.tolist(), one.most["text"].tolist()
    ([2.0], [1], [1])
    """
    there = np.isfinite(numbers.value)
    cells = numbers.value.shape[1]
    cell = np.broadcast_to(np.arange(cells), there.shape)
    total, squares = exact_sums(numbers.value.T[there.T], cell.T[there.T], cells)  # cell after cell, as memory likes it
    items = np.bincount(numbers.bins // BINS, numbers.counts, cells).astype(np.int64)

    def examples(value: np.ndarray, token: np.ndarray, sign: int) -> np.ndarray:
        ordered = np.where(there, sign * value, np.inf)
        last = (
            np.partition(ordered, min(top, len(ordered)) - 1, 0)[min(top, len(ordered)) - 1]
            if top and len(ordered)
            else -np.inf
        )
        some = there & (ordered <= last)  # the few that can be among the first
        found = np.empty(int(some.sum()), EXAMPLE)
        found["cell"], found["value"], found["token"] = cell[some], value[some], token[some]
        found["text"] = np.broadcast_to(numbers.text[:, None], some.shape)[some]
        return _first(found, top, sign)

    return Summary(
        texts=there.sum(0),
        missing=(~there).sum(0),
        items=items,
        total=total,
        squares=squares,
        documents=of_documents(numbers.text, numbers.value, total, squares),
        bins=numbers.bins,
        counts=numbers.counts,
        most=examples(numbers.largest, numbers.largest_token, -1),
        least=examples(numbers.smallest, numbers.smallest_token, 1),
    )


def merged(parts: Sequence[Summary], top: int) -> Summary:
    """The summary of all texts of several summaries: bit for bit that of the whole, in any order, as long as a document is in one."""

    def together(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])

    bins, counts = counted(together("bins"), together("counts"))
    return Summary(
        texts=np.sum([part.texts for part in parts], 0),
        missing=np.sum([part.missing for part in parts], 0),
        items=np.sum([part.items for part in parts], 0),
        total=[sum(cell) for cell in zip(*(part.total for part in parts), strict=True)],
        squares=[sum(cell) for cell in zip(*(part.squares for part in parts), strict=True)],
        documents=Documents.merged([part.documents for part in parts]),
        bins=bins,
        counts=counts,
        most=_first(together("most"), top, -1),
        least=_first(together("least"), top, 1),
    )


def counted(bins: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A histogram with each bin once, rising."""
    order = np.argsort(bins, kind="stable")
    bins, counts = bins[order], counts[order]
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    return bins[starts], np.add.reduceat(counts, starts) if len(starts) else counts


def _first(found: np.ndarray, top: int, sign: int) -> np.ndarray:
    """The first few examples of every cell: by value (the largest first where sign is −1), then by text and token."""
    found = found[np.lexsort((found["token"], found["text"], sign * found["value"], found["cell"]))]
    starts = np.searchsorted(found["cell"], found["cell"])
    return found[np.arange(len(found)) - starts < top]


# What a histogram tells


def edges(bins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two ends of bins, by their number within a cell.

    >>> [float(end[0]) for end in edges(np.array([49152 - 128]))]
    [1.0, 1.0078125]
    """
    raw = (np.asarray(bins, np.int64) - BINS // 2).astype(np.int32)
    near, far = ((x << 16).view(np.float32).astype(np.float64) for x in (raw, raw + 1))
    return np.minimum(near, far), np.maximum(near, far)


def quantiles(kept: Summary, shares: Sequence[float]) -> np.ndarray:
    """Quantiles (cell, share) of the items, in the middle of the bin that holds each; NaN where there is none."""
    found = np.full((kept.cells, len(shares)), np.nan)
    cell, low, high = kept.bins // BINS, *edges(kept.bins % BINS)
    ends = np.searchsorted(cell, np.arange(kept.cells + 1))
    for at in range(kept.cells):
        some = np.arange(ends[at], ends[at + 1])
        if len(some):
            order = some[np.argsort(low[some], kind="stable")]
            place = np.searchsorted(np.cumsum(kept.counts[order]), np.asarray(shares) * kept.items[at])
            chosen = order[np.minimum(place, len(order) - 1)]
            found[at] = (low[chosen] + high[chosen]) / 2
    return found


# As a table


def columns(kept: Summary) -> dict[str, Any]:
    """A row a cell; what has several numbers in a cell is a list there."""
    import pyarrow as pa

    def lists(cell: np.ndarray, x: np.ndarray) -> Any:
        ends = np.searchsorted(cell, np.arange(kept.cells + 1)).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(ends), pa.array(np.ascontiguousarray(x)))

    mean, sd = kept.moments()
    told: dict[str, Any] = {"cell": np.arange(kept.cells), "texts": kept.texts, "missing": kept.missing}
    told |= {"items": kept.items, "mean": mean, "sd": sd}
    told |= {name: pa.array([_packed(x) for x in getattr(kept, name)], pa.binary()) for name in ("total", "squares")}
    told |= {f"document_{name}": x for name, x in (("count", kept.documents.count), ("sizes", kept.documents.sizes))}
    told |= {
        f"document_{name}": pa.array([_packed(x) for x in getattr(kept.documents, name)], pa.binary())
        for name in ("squares", "products")
    }
    cell = kept.bins // BINS
    told |= {"bins": lists(cell, (kept.bins % BINS).astype(np.int32)), "counts": lists(cell, kept.counts)}
    for name in ("most", "least"):
        found = getattr(kept, name)
        told |= {f"{name}_{part}": lists(found["cell"], found[part]) for part in ("value", "text", "token")}
    return told


def from_columns(table: Any) -> Summary:
    """The summary that such a table (of pyarrow) was made of."""

    def lists(name: str) -> tuple[np.ndarray, np.ndarray]:
        column = table[name].combine_chunks()
        lengths = np.diff(column.offsets.to_numpy())
        return np.repeat(np.arange(len(lengths)), lengths), column.flatten().to_numpy()

    def examples(name: str) -> np.ndarray:
        cell, text = lists(f"{name}_text")
        found = np.empty(len(text), EXAMPLE)
        found["cell"], found["text"] = cell, text
        found["value"], found["token"] = lists(f"{name}_value")[1], lists(f"{name}_token")[1]
        return found

    def whole(name: str) -> list[int]:
        return [int.from_bytes(x, "big", signed=True) for x in table[name].to_pylist()]

    cell, bins = lists("bins")
    return Summary(
        texts=table["texts"].to_numpy(),
        missing=table["missing"].to_numpy(),
        items=table["items"].to_numpy(),
        total=whole("total"),
        squares=whole("squares"),
        documents=Documents(
            table["document_count"].to_numpy(),
            table["document_sizes"].to_numpy(),
            whole("document_squares"),
            whole("document_products"),
        ),
        bins=cell * BINS + bins,
        counts=lists("counts")[1],
        most=examples("most"),
        least=examples("least"),
    )


def _packed(x: int) -> bytes:
    return x.to_bytes(x.bit_length() // 8 + 1, "big", signed=True)
