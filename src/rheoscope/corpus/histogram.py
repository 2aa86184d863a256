"""How often each number occurs in every cell, counted where the numbers are, without waiting for them.

The bins are the numbers that bfloat16 can tell apart: the upper 16 bits of a float32, the same on every device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.corpus.summaries import BINS, counted

DENSE = 16
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
    def of(x: Float[Tensor, "text *cell item"], there: Bool[Tensor, "text *cell item"]) -> "Histogram":
        """Of the numbers that are there, float32.

        >>> found = Histogram.of(torch.tensor([[[1.0, 1.001, 2.0]]]), torch.ones(1, 1, 3, dtype=torch.bool))
        >>> found.counted()[1].tolist()
        [2, 1]
        """
        upper = (x.contiguous().view(torch.int32) >> 16) + BINS // 2
        cells = x[:1, ..., 0].numel()
        key = torch.arange(cells, device=x.device).reshape(*x.shape[1:-1], 1) * BINS + upper
        return Histogram(cells * BINS, unsorted=torch.where(there, key, -1).flatten())._settled()

    @staticmethod
    def joined(parts: "Sequence[Histogram]") -> "Histogram":
        """The counts of all of them, in no more memory than one table and as many numbers as are worth none."""
        tables = [part.table for part in parts if part.table is not None]
        apart = [part.unsorted for part in parts if part.unsorted is not None]
        return Histogram(
            max(part.size for part in parts),
            torch.stack(tables).sum(0, dtype=torch.int32) if tables else None,
            torch.cat(apart) if apart else None,
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("bins", "counts")),
        )._settled()

    def _settled(self) -> "Histogram":
        """Numbers counted in the table where they are many, or where there is one."""
        apart, table = self.unsorted, self.table
        if apart is None or (table is None and len(apart) * DENSE < self.size):
            return self
        if table is None:
            table = torch.zeros(self.size, dtype=torch.int32, device=apart.device)
        return replace(self, table=table.scatter_add(0, apart.clamp(min=0), (apart >= 0).int()), unsorted=None)

    def counted(self) -> tuple[np.ndarray, np.ndarray]:
        """Every bin that has something once, rising, and how much: here the device is waited for."""
        bins, counts = [self.bins], [self.counts]
        if self.table is not None:
            there = self.table.nonzero()[:, 0]
            bins, counts = [*bins, there.cpu().numpy()], [*counts, self.table[there].long().cpu().numpy()]
        if self.unsorted is not None:
            found, many = self.unsorted[self.unsorted >= 0].unique(return_counts=True)
            bins, counts = [*bins, found.cpu().numpy()], [*counts, many.cpu().numpy()]
        return counted(np.concatenate(bins), np.concatenate(counts))
