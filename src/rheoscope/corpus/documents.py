"""Documents: rows of the input. Pieces of one row are more alike than pieces of two, so how sure a mean is goes by documents.

With T_g the sum and n_g the number of the texts of document g, n = Σ n_g and m = Σ T_g / n the mean over texts, the variance of m that
holds however alike the pieces of a document are (the sandwich, clusters being documents) is

    G/(G − 1) · Σ_g (T_g − m n_g)² / n² = G/(G − 1) · (Σ T² − 2m Σ T n + m² Σ n²) / n²

A document lies in one shard as a whole, so these four sums merge as all others do: without rounding, in any order. Where every document is
one text it is s²/n.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from rheoscope.corpus.segments import PIECES
from rheoscope.statistics.exact_sums import UNIT_BITS, exact_sums

LARGEST = np.finfo(np.float32).max


@dataclass(frozen=True, eq=False)
class Documents:
    """Of the documents that have a number in each cell: how many (`count`), Σ n², Σ T² and Σ T n."""

    count: np.ndarray
    sizes: np.ndarray
    squares: list[int]
    products: list[int]

    @staticmethod
    def merged(parts: "Sequence[Documents]") -> "Documents":
        """Of several summaries that share no document."""

        def sums(name: str) -> list[int]:
            return [sum(cell) for cell in zip(*(getattr(part, name) for part in parts), strict=True)]

        count, sizes = (np.sum([getattr(part, name) for part in parts], 0) for name in ("count", "sizes"))
        return Documents(count, sizes, sums("squares"), sums("products"))


def of_documents(text: np.ndarray, value: np.ndarray, total: list[int], squares: list[int]) -> Documents:
    """What is kept of the documents of some texts; `value` (text, cell) has NaN where there is none, `total` and `squares` are its sums.

    >>> x = np.float32([[1], [2], [5]])
    >>> one = of_documents(np.int64([0, 1, PIECES]), x, *exact_sums(x[:, 0], np.zeros(3, int), 1))
    >>> one.count.tolist(), one.sizes.tolist(), one.squares[0] >> 2 * UNIT_BITS, one.products[0] >> UNIT_BITS
    ([2], [5], 34, 11)
    """
    order = np.argsort(text, kind="stable")  # a sum of float64 depends on its order, and batches have one of their own
    document = text[order] // PIECES
    starts = np.flatnonzero(np.diff(document, prepend=-1))
    there = np.isfinite(value[order])
    if len(starts) == len(text):
        count = there.sum(0)
        return Documents(count, count, squares, total)
    cells = value.shape[1]
    n = np.add.reduceat(there.astype(np.int64), starts)
    sums = np.add.reduceat(np.where(there, value[order], 0).astype(np.float64), starts)
    held, cell = n > 0, np.broadcast_to(np.arange(cells), n.shape)
    T = _narrow(sums[held])
    product = T.astype(np.float64) * n[held]  # 24 and 15 bits: exact, and so are its two halves in float32
    upper = _narrow(product)
    lower = _narrow(product - upper)
    of_product = [exact_sums(half, cell[held], cells)[0] for half in (upper, lower)]
    return Documents(
        count=held.sum(0),
        sizes=(n * n).sum(0),
        squares=exact_sums(T, cell[held], cells)[1],
        products=[high + low for high, low in zip(*of_product, strict=True)],
    )


def _narrow(x: np.ndarray) -> np.ndarray:
    """As float32, which numbers beyond it end at."""
    return np.clip(x, -LARGEST, LARGEST).astype(np.float32)


def error_of_mean(total: int, texts: int, documents: int, sizes: int, squares: int, products: int) -> float:
    """The standard error of a mean over texts, by documents, rounded once; NaN of fewer than two documents.

    >>> round(error_of_mean(8 << UNIT_BITS, 3, 2, 5, 34 << 2 * UNIT_BITS, 11 << UNIT_BITS), 6)
    1.555556
    """
    if documents < 2:
        return float("nan")
    spread = (squares * texts - 2 * total * products) * texts + total * total * sizes
    return sqrt(max(0, spread * documents) / (texts**4 * (documents - 1) << 2 * UNIT_BITS))
