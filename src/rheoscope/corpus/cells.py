"""One field of some texts: a number a text in every cell (of every head, of every layer), and what its tokens' numbers are like.

The axes that mean the same in every text (layer, head, step, …) make cells. Those that belong to one text (its tokens, the draws of its
null) are taken together, on the device that the numbers are on: their mean, the largest, the smallest, a histogram.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rheoscope.corpus.summaries import BINS, Numbers, counted
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Field

OF_A_TEXT = frozenset({"token", "type", "word", "pair", "elsewhere", "draw", "text", "group"})
"""Axes whose places are other things in another text."""


@dataclass(frozen=True, eq=False)
class Cells:
    """`value` (text, *kept): of floating-point numbers the mean over the tokens, float32. `kept` are its axes.

    `each` (text, *dims) are the numbers of all tokens, `dims` their axes, where the field has some. The rest is None where the field
    names things instead of counting them.
    """

    kept: tuple[str, ...]
    value: np.ndarray | None
    dims: tuple[str, ...] = ()
    each: np.ndarray | None = None
    largest: tuple[np.ndarray, np.ndarray] | None = None
    smallest: tuple[np.ndarray, np.ndarray] | None = None
    bins: np.ndarray | None = None
    counts: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """How many places each kept axis has."""
        assert self.value is not None
        return self.value.shape[1:]

    def numbers(self, texts: np.ndarray) -> Numbers | None:
        """What a summary is made of; None of what is no number."""
        if self.largest is None or self.smallest is None or self.value is None:
            return None
        assert self.bins is not None
        assert self.counts is not None
        value, largest, at_largest, smallest, at_smallest = (
            x.reshape(len(texts), -1) for x in (self.value, *self.largest, *self.smallest)
        )
        bins, counts = counted(self.bins, self.counts)
        return Numbers(texts, value, largest, at_largest, smallest, at_smallest, bins, counts)

    @staticmethod
    def joined(parts: "Sequence[Cells | None]", sizes: Sequence[int]) -> "Cells":
        """The same field of more texts; a part that has not got it has as many texts without a number."""
        first = next(part for part in parts if part is not None)
        if first.value is not None and len({part.shape for part in parts if part is not None}) > 1:
            raise RheoscopeError(
                f"a field has other places along {first.kept} in another text, so texts cannot be joined"
            )
        some = [_absent(first, size) if part is None else part for part, size in zip(parts, sizes, strict=True)]

        def both(name: str) -> Any:
            pairs = [getattr(part, name) for part in some]
            return None if pairs[0] is None else tuple(np.concatenate([pair[at] for pair in pairs]) for at in (0, 1))

        def all_of(name: str) -> Any:
            return None if getattr(first, name) is None else np.concatenate([getattr(part, name) for part in some])

        return Cells(
            kept=first.kept,
            value=all_of("value"),
            dims=first.dims,
            each=None if first.each is None else _padded([part.each for part in some if part.each is not None]),
            largest=both("largest"),
            smallest=both("smallest"),
            bins=all_of("bins"),
            counts=all_of("counts"),
        )


def cells_of(x: Tensor | np.ndarray, field: Field, tokens: bool = True) -> Cells:
    """A field of a batch (text, *dims), as the cells that its axes make."""
    mine = tuple(dim for dim in field.dims if dim in OF_A_TEXT)
    kept = tuple(dim for dim in field.dims if dim not in OF_A_TEXT)
    if isinstance(x, np.ndarray):
        return Cells(kept, x) if not mine else Cells(kept, None)
    whole = not x.is_floating_point() and x.dtype is not torch.bool
    each = _stored(x) if mine and tokens else None
    if field.names:
        return Cells(kept, None if mine else _stored(x), field.dims if mine else (), each)
    order = [1 + field.dims.index(dim) for dim in (*kept, *mine)]
    flat = x.permute(0, *order).flatten(1 + len(kept)) if mine else x[..., None]
    numbers = flat.float() + 0.0  # -0 and 0 are one number
    there = numbers.isfinite() & (flat != -1) if whole and mine else numbers.isfinite()
    value, most, least, at_most, at_least = (one.cpu().numpy() for one in _of_items(numbers, there))
    token = "token" in mine and len(mine) == 1
    places = (at_most if token else np.full_like(at_most, -1), at_least if token else np.full_like(at_least, -1))
    bins, counts = histogram(numbers, there)
    return Cells(kept, value, field.dims if mine else (), each, (most, places[0]), (least, places[1]), bins, counts)


def _of_items(x: Tensor, there: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Over the last axis: mean, largest, smallest (NaN where there is nothing), and where these are first."""
    if x.shape[-1] == 1:
        only, nothing = torch.where(there, x, torch.nan)[..., 0], torch.full(x.shape[:-1], -1, dtype=torch.int32)
        return only, only, only, nothing, nothing
    some, count = there.any(-1), there.sum(-1)
    mean = torch.where(there, x, 0).double().sum(-1) / count.clamp(min=1)
    most, least = torch.where(there, x, -torch.inf).max(-1), torch.where(there, x, torch.inf).min(-1)
    values = (torch.where(some, one, torch.nan) for one in (mean.float(), most.values, least.values))
    return *values, most.indices.int(), least.indices.int()  # type: ignore[return-value]


def histogram(x: Tensor, there: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Bins (cell · 65536 + the upper half of the number) of all that is there, rising, and how many are in each.

    >>> bins, counts = histogram(torch.tensor([[[1.0, 1.001, 2.0]]]), torch.ones(1, 1, 3, dtype=torch.bool))
    >>> counts.tolist()
    [2, 1]
    """
    upper = (x.contiguous().view(torch.int32) >> 16) + BINS // 2
    cells = x[0, ..., 0].numel() if len(x) else 0
    cell = torch.arange(cells, device=x.device).reshape(*x.shape[1:-1], 1)
    found, counts = (cell * BINS + upper)[there].unique(return_counts=True)
    return found.cpu().numpy(), counts.cpu().numpy()


def _stored(x: Tensor) -> np.ndarray:
    """As rows hold it: float32, int32 or a truth."""
    kind = torch.float32 if x.is_floating_point() else x.dtype if x.dtype is torch.bool else torch.int32
    return x.to(kind).cpu().numpy()


def _padded(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Texts of other sizes below each other, with nothing where a text has no such place."""
    if len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)
    shape = np.max([part.shape[1:] for part in parts], 0)
    fill: Any = np.nan if parts[0].dtype.kind == "f" else -1
    found = np.full((sum(map(len, parts)), *shape), fill, parts[0].dtype)
    begin = 0
    for part in parts:
        found[(slice(begin, begin + len(part)), *(slice(size) for size in part.shape[1:]))] = part
        begin += len(part)
    return found


def _absent(like: Cells, texts: int) -> Cells:
    """As many texts without a number."""

    def empty(x: np.ndarray | None) -> Any:
        if x is None:
            return None
        fill: Any = np.nan if x.dtype.kind == "f" else "" if x.dtype.kind == "U" else -1
        return np.full((texts, *x.shape[1:]), fill, x.dtype if x.dtype.kind != "b" else np.int32)

    def pair(x: tuple[np.ndarray, np.ndarray] | None) -> Any:
        return None if x is None else (empty(x[0]), empty(x[1]))

    nothing = None if like.bins is None else np.zeros(0, np.int64)
    return Cells(
        like.kept,
        empty(like.value),
        like.dims,
        empty(like.each),
        pair(like.largest),
        pair(like.smallest),
        nothing,
        nothing,
    )
