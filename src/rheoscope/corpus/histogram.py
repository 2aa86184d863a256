"""How often each number occurs in every cell, counted where the numbers are, without waiting for them.

The bins are the numbers that bfloat16 can tell apart: the upper 16 bits of a float32, the same on every device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.corpus.summaries import BINS_PER_CELL, merge_bins

DENSE_FACTOR = 16
"""Bins for each number, above which numbers are sorted instead of counted in a table."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of bins (cell · 65536 + bin), of which there are `size`: some as a `table` of all of them on a device, some as the bin of
    every number there (−1: there is none), to be sorted when somebody asks, and some one by one on the host."""

    size: int = 0
    table: Int[Tensor, " size"] | None = None
    unsorted: Int[Tensor, " number"] | None = None
    bins: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @staticmethod
    def from_values(x: Float[Tensor, "text *cell item"], is_valid: Bool[Tensor, "text *cell item"]) -> "Histogram":
        """Of the numbers that are there, float32.

        >>> found = Histogram.from_values(torch.tensor([[[1.0, 1.001, 2.0]]]), torch.ones(1, 1, 3, dtype=torch.bool))
        >>> found.to_counts()[1].tolist()
        [2, 1]
        """
        bin_index = (x.contiguous().view(torch.int32) >> 16) + BINS_PER_CELL // 2
        cells = x[:1, ..., 0].numel()
        keys = torch.arange(cells, device=x.device).reshape(*x.shape[1:-1], 1) * BINS_PER_CELL + bin_index
        return Histogram(cells * BINS_PER_CELL, unsorted=torch.where(is_valid, keys, -1).flatten())._tabulate()

    @staticmethod
    def join(parts: "Sequence[Histogram]") -> "Histogram":
        """The counts of all of them, in no more memory than one table and as many numbers as are worth none."""
        tables = [part.table for part in parts if part.table is not None]
        unsorted = [part.unsorted for part in parts if part.unsorted is not None]
        return Histogram(
            max(part.size for part in parts),
            torch.stack(tables).sum(0, dtype=torch.int32) if tables else None,
            torch.cat(unsorted) if unsorted else None,
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("bins", "counts")),
        )._tabulate()

    def _tabulate(self) -> "Histogram":
        """Numbers counted in the table where they are many, or where there is one."""
        unsorted, table = self.unsorted, self.table
        if unsorted is None or (table is None and len(unsorted) * DENSE_FACTOR < self.size):
            return self
        if table is None:
            table = torch.zeros(self.size, dtype=torch.int32, device=unsorted.device)
        return replace(self, table=table.scatter_add(0, unsorted.clamp(min=0), (unsorted >= 0).int()), unsorted=None)

    def to_counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Every bin that has something once, rising, and how much: here the device is waited for."""
        bins, counts = [self.bins], [self.counts]
        if self.table is not None:
            occupied = self.table.nonzero()[:, 0]
            bins, counts = [*bins, occupied.cpu().numpy()], [*counts, self.table[occupied].long().cpu().numpy()]
        if self.unsorted is not None:
            unique_bins, unique_counts = self.unsorted[self.unsorted >= 0].unique(return_counts=True)
            bins, counts = [*bins, unique_bins.cpu().numpy()], [*counts, unique_counts.cpu().numpy()]
        return merge_bins(np.concatenate(bins), np.concatenate(counts))
