"""One field of some texts: a number a text in every cell (of every head, of every layer), and what its tokens' numbers are like.

The axes that mean the same in every text (layer, head, step, …) make cells. Those that belong to one text (its tokens, the draws of its
null) are taken together, on the device that the numbers are on: their mean, the largest, the smallest, a histogram.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rheoscope.corpus.histogram import Histogram
from rheoscope.corpus.summaries import Numbers
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Field

OF_A_TEXT = frozenset({"token", "type", "word", "pair", "elsewhere", "draw", "text", "group"})
"""Axes whose places are other things in another text."""


@dataclass(frozen=True, eq=False)
class Cells:
    """`value` (text, *kept): of numbers the mean over the tokens, float32, NaN where there is none. `kept` are its axes.

    `each` (text, *dims) are the numbers of all tokens, `dims` their axes, where the field has some; then `largest` and `smallest` are
    numbers of single tokens and their places, and `histogram` counts those of all tokens. `names`: it is no number.
    Tensors stay on the device until `on_host`, so that nobody waits for them.
    """

    kept: tuple[str, ...]
    value: Any
    dims: tuple[str, ...] = ()
    each: np.ndarray | None = None
    largest: tuple[Any, Any] | None = None
    smallest: tuple[Any, Any] | None = None
    histogram: Histogram | None = None
    names: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """How many places each kept axis has."""
        return tuple(self.value.shape[1:])

    def on_host(self) -> "Cells":
        """The same as arrays of numpy, with a histogram of texts where there is none of tokens."""
        if not isinstance(self.value, Tensor):
            return self
        seen = self.histogram
        if seen is None and not self.names:
            seen = Histogram.of(self.value[..., None], self.value.isfinite()[..., None])
        most, least = (
            None if one is None else (_array(one[0]), _array(one[1])) for one in (self.largest, self.smallest)
        )
        on_host = None if seen is None else Histogram(seen.size, None, None, *seen.counted())
        return replace(self, value=_array(self.value), largest=most, smallest=least, histogram=on_host)

    def numbers(self, texts: np.ndarray) -> Numbers | None:
        """What a summary is made of; None of what is no number."""
        if self.names or self.value is None:
            return None
        host = self.on_host()
        assert host.histogram is not None
        value = host.value.reshape(len(texts), -1)
        nowhere = value, np.broadcast_to(np.int32(-1), value.shape)
        most, least = (nowhere if one is None else one for one in (host.largest, host.smallest))
        large, at_large, small, at_small = (x.reshape(len(texts), -1) for x in (*most, *least))
        bins, counts = host.histogram.counted()
        return Numbers(texts, value, large, at_large, small, at_small, bins, counts)

    @staticmethod
    def joined(parts: "Sequence[Cells | None]", sizes: Sequence[int]) -> "Cells":
        """The same field of more texts; a part that has not got it has as many texts without a number."""
        first = next(part for part in parts if part is not None)
        if first.value is not None and len({part.shape for part in parts if part is not None}) > 1:
            raise RheoscopeError(
                f"a field has other places along {first.kept} in another text, so texts cannot be joined"
            )
        some = [_absent(first, size) if part is None else part for part, size in zip(parts, sizes, strict=True)]

        def pairs(name: str) -> Any:
            found = [getattr(part, name) for part in some]
            return None if found[0] is None else tuple(_below([pair[at] for pair in found]) for at in (0, 1))

        def all_of(name: str) -> Any:
            return None if getattr(first, name) is None else _below([getattr(part, name) for part in some])

        seen = [part.histogram for part in some if part.histogram is not None]
        return Cells(
            kept=first.kept,
            value=all_of("value"),
            dims=first.dims,
            each=None if first.each is None else _padded([part.each for part in some if part.each is not None]),
            largest=pairs("largest"),
            smallest=pairs("smallest"),
            histogram=None if not seen else Histogram.joined(seen),
            names=first.names,
        )


def cells_of(x: Tensor | np.ndarray, field: Field, tokens: bool = True) -> Cells:
    """A field of a batch (text, *dims), as the cells that its axes make."""
    mine = tuple(dim for dim in field.dims if dim in OF_A_TEXT)
    kept = tuple(dim for dim in field.dims if dim not in OF_A_TEXT)
    if isinstance(x, np.ndarray):
        return Cells(kept, None if mine else x, names=True)
    dims = field.dims if mine else ()
    each = _array(_stored(x)) if mine and tokens else None
    if field.names:
        return Cells(kept, None if mine else _stored(x), dims, each, names=True)
    if not mine:
        return Cells(kept, _number(x))
    order = [1 + field.dims.index(dim) for dim in (*kept, *mine)]
    flat = x.permute(0, *order).flatten(1 + len(kept))
    whole = not x.is_floating_point() and x.dtype is not torch.bool
    numbers = torch.where(flat == -1, torch.nan, _number(flat)) if whole else _number(flat)
    there = numbers.isfinite()
    value, largest, smallest = _of_items(numbers, there)
    if mine != ("token",):
        largest, smallest = ((one[0], torch.full_like(one[1], -1)) for one in (largest, smallest))
    return Cells(kept, value, dims, each, largest, smallest, Histogram.of(numbers, there))


def _number(x: Tensor) -> Tensor:
    """float32, NaN for all that is not finite there; 0 and -0 are one number."""
    x = x.float() + 0.0
    return torch.where(x.isfinite(), x, torch.nan)


Place = tuple[Tensor, Tensor]


def _of_items(x: Tensor, there: Tensor) -> tuple[Tensor, Place, Place]:
    """Over the last axis: the mean, the largest and the smallest (NaN where there is nothing), and where these are first."""
    some = there.any(-1)
    mean = torch.where(there, x, 0).double().sum(-1) / there.sum(-1).clamp(min=1)
    most, least = torch.where(there, x, -torch.inf).max(-1), torch.where(there, x, torch.inf).min(-1)
    value, large, small = (torch.where(some, one, torch.nan) for one in (mean.float(), most.values, least.values))
    return value, (large, most.indices.int()), (small, least.indices.int())


def _array(x: Tensor) -> np.ndarray:
    return x.cpu().numpy()


def _below(parts: Sequence[Any]) -> Any:
    """Texts below each other."""
    return torch.cat(list(parts)) if isinstance(parts[0], Tensor) else np.concatenate(parts)


def _stored(x: Tensor) -> Tensor:
    """As rows hold it: float32, int32 or a truth."""
    kind = torch.float32 if x.is_floating_point() else x.dtype if x.dtype is torch.bool else torch.int32
    return x.to(kind)


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

    def empty(x: Any) -> Any:
        if x is None:
            return None
        if isinstance(x, Tensor):
            return x.new_full((texts, *x.shape[1:]), torch.nan if x.is_floating_point() else -1)
        fill: Any = np.nan if x.dtype.kind == "f" else "" if x.dtype.kind == "U" else -1
        return np.full((texts, *x.shape[1:]), fill, x.dtype)

    def pair(x: tuple[Any, Any] | None) -> Any:
        return None if x is None else (empty(x[0]), empty(x[1]))

    nothing = None if like.histogram is None else Histogram()
    return Cells(
        like.kept, empty(like.value), like.dims, empty(like.each), pair(like.largest), pair(like.smallest), nothing,
        like.names,
    )  # fmt: skip
