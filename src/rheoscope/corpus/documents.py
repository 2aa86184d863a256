"""Standard errors by document.

Segments of one row are more similar than segments of two, so each document is one unit.

Let T_g be the sum and n_g the number of the texts of document g, n = Σ n_g, and m = Σ T_g / n the mean over texts.
The cluster-robust (sandwich) variance of m, with documents as clusters, is

    G/(G − 1) · Σ_g (T_g − m n_g)² / n² = G/(G − 1) · (Σ T² − 2m Σ T n + m² Σ n²) / n²

A document lies in a single shard, so these four sums merge exactly and in any order. If every document is one text,
the variance is s²/n.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from rheoscope.corpus.segments import MAX_SEGMENTS
from rheoscope.statistics.exact_sums import UNIT_BITS, exact_sums

MAX_FLOAT32 = np.finfo(np.float32).max


@dataclass(frozen=True, eq=False)
class Documents:
    """For each cell, over the documents with a value: their number (`count`), Σ n², Σ T² and Σ T n."""

    count: np.ndarray
    sizes: np.ndarray
    squares: list[int]
    products: list[int]

    @staticmethod
    def merge(parts: "Sequence[Documents]") -> "Documents":
        """Merge summaries that share no document."""

        def sum_lists(name: str) -> list[int]:
            return [sum(cell) for cell in zip(*(getattr(part, name) for part in parts), strict=True)]

        count, sizes = (np.sum([getattr(part, name) for part in parts], 0) for name in ("count", "sizes"))
        return Documents(count, sizes, sum_lists("squares"), sum_lists("products"))


def document_sums(text_ids: np.ndarray, values: np.ndarray, total: list[int], squares: list[int]) -> Documents:
    """The document sums of some texts.

    `values` (text, cell) is NaN where there is no value; `total` and `squares` are its sums.

    >>> x = np.float32([[1], [2], [5]])
    >>> documents = document_sums(np.int64([0, 1, MAX_SEGMENTS]), x, *exact_sums(x[:, 0], np.zeros(3, int), 1))
    >>> documents.count.tolist(), documents.sizes.tolist()
    ([2], [5])
    >>> documents.squares[0] >> 2 * UNIT_BITS, documents.products[0] >> UNIT_BITS
    (34, 11)
    """
    order = np.argsort(text_ids, kind="stable")  # float64 sums depend on the order, and batches reorder the texts
    document = text_ids[order] // MAX_SEGMENTS
    starts = np.flatnonzero(np.diff(document, prepend=-1))
    is_finite = np.isfinite(values[order])
    if len(starts) == len(text_ids):
        count = is_finite.sum(0)
        return Documents(count, count, squares, total)
    n_cells = values.shape[1]
    n = np.add.reduceat(is_finite.astype(np.int64), starts)
    sums = np.add.reduceat(np.where(is_finite, values[order], 0).astype(np.float64), starts)
    has_value, cell_index = n > 0, np.broadcast_to(np.arange(n_cells), n.shape)
    T = _clip_to_float32(sums[has_value])
    product = T.astype(np.float64) * n[has_value]  # 24 + 15 bits are exact, and so are the two float32 halves
    upper = _clip_to_float32(product)
    lower = _clip_to_float32(product - upper)
    product_sums = [exact_sums(half, cell_index[has_value], n_cells)[0] for half in (upper, lower)]
    return Documents(
        count=has_value.sum(0),
        sizes=(n * n).sum(0),
        squares=exact_sums(T, cell_index[has_value], n_cells)[1],
        products=[high + low for high, low in zip(*product_sums, strict=True)],
    )


def _clip_to_float32(x: np.ndarray) -> np.ndarray:
    """As float32, with larger numbers clipped to its range."""
    return np.clip(x, -MAX_FLOAT32, MAX_FLOAT32).astype(np.float32)


def standard_error(total: int, n_texts: int, n_documents: int, sizes: int, squares: int, products: int) -> float:
    """The standard error of a mean over texts, by documents, rounded once. NaN for fewer than two documents.

    >>> round(standard_error(8 << UNIT_BITS, 3, 2, 5, 34 << 2 * UNIT_BITS, 11 << UNIT_BITS), 6)
    1.555556
    """
    if n_documents < 2:
        return float("nan")
    squared_deviation = (squares * n_texts - 2 * total * products) * n_texts + total * total * sizes
    return sqrt(max(0, squared_deviation * n_documents) / (n_texts**4 * (n_documents - 1) << 2 * UNIT_BITS))
