"""Histograms per cell, counted on the device without synchronisation.

The bins are the values that bfloat16 distinguishes (the upper 16 bits of a float32), so they are the same on every
device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.corpus.summaries import BINS_PER_CELL, merge_bins

DENSE_FACTOR = 16
"""If there are more bins per number than this, numbers are sorted instead of counted in a table."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of the bins (cell · 65536 + bin), of which there are `size`.

    Some counts are a dense `table` on the device. Some are the `unsorted` bins of single numbers there (−1: none),
    sorted on demand. Some are on the host as `bins` with their `counts`.
    """

    size: int = 0
    table: Int[Tensor, " size"] | None = None
    unsorted: Int[Tensor, " number"] | None = None
    bins: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @staticmethod
    def from_values(x: Float[Tensor, "text *cell item"], is_valid: Bool[Tensor, "text *cell item"]) -> "Histogram":
        """The histogram of the valid numbers, float32.

        >>> x = torch.tensor([[[1.0, 1.001, 2.0]]])
        >>> Histogram.from_values(x, torch.ones_like(x, dtype=torch.bool)).to_counts()[1].tolist()
        [2, 1]
        """
        bin_index = (x.contiguous().view(torch.int32) >> 16) + BINS_PER_CELL // 2
        cells = x[:1, ..., 0].numel()
        keys = torch.arange(cells, device=x.device).reshape(*x.shape[1:-1], 1) * BINS_PER_CELL + bin_index
        return Histogram(cells * BINS_PER_CELL, unsorted=torch.where(is_valid, keys, -1).flatten())._tabulate()

    @staticmethod
    def join(parts: "Sequence[Histogram]") -> "Histogram":
        """The sum of several histograms, in the memory of one table plus the numbers that are too few for one."""
        tables = [part.table for part in parts if part.table is not None]
        unsorted = [part.unsorted for part in parts if part.unsorted is not None]
        return Histogram(
            max(part.size for part in parts),
            torch.stack(tables).sum(0, dtype=torch.int32) if tables else None,
            torch.cat(unsorted) if unsorted else None,
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("bins", "counts")),
        )._tabulate()

    def _tabulate(self) -> "Histogram":
        """Move numbers to the table if there are many of them, or if a table exists."""
        unsorted, table = self.unsorted, self.table
        if unsorted is None or (table is None and len(unsorted) * DENSE_FACTOR < self.size):
            return self
        if table is None:
            table = torch.zeros(self.size, dtype=torch.int32, device=unsorted.device)
        return replace(self, table=table.scatter_add(0, unsorted.clamp(min=0), (unsorted >= 0).int()), unsorted=None)

    def to_counts(self) -> tuple[np.ndarray, np.ndarray]:
        """The occupied bins in ascending order and their counts. This synchronises with the device."""
        bins, counts = [self.bins], [self.counts]
        if self.table is not None:
            occupied = self.table.nonzero()[:, 0]
            bins, counts = [*bins, occupied.cpu().numpy()], [*counts, self.table[occupied].long().cpu().numpy()]
        if self.unsorted is not None:
            unique_bins, unique_counts = self.unsorted[self.unsorted >= 0].unique(return_counts=True)
            bins, counts = [*bins, unique_bins.cpu().numpy()], [*counts, unique_counts.cpu().numpy()]
        return merge_bins(np.concatenate(bins), np.concatenate(counts))
