"""One field of a batch of texts: a number per text and cell, and statistics over its tokens.

Axes that mean the same in every text (layer, head, step, …) form cells. Axes that belong to one text (its tokens,
the draws of its null) are reduced on the device: to their mean, maximum, minimum and a histogram.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rheoscope.corpus.histogram import Histogram
from rheoscope.corpus.summaries import FieldValues
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Field

TEXT_AXES = frozenset({"token", "type", "token_text", "word", "pair", "earlier_token", "draw", "text", "group"})
"""Axes whose coordinates differ between texts."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The values of a field (text, *cell_dims), float32, NaN where there is none. Token axes are averaged.

    If the field has token axes, `token_values` (text, *token_dims) holds all numbers. `largest` and `smallest` are
    single-token values with their positions, and `histogram` counts all tokens. `is_categorical`: the values are
    labels. Tensors stay on the device until `to_host`, so that the device need not be waited for.
    """

    cell_dims: tuple[str, ...]
    value: Any
    token_dims: tuple[str, ...] = ()
    token_values: np.ndarray | None = None
    largest: tuple[Any, Any] | None = None
    smallest: tuple[Any, Any] | None = None
    histogram: Histogram | None = None
    is_categorical: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the cell axes."""
        return tuple(self.value.shape[1:])

    def to_host(self) -> "Cells":
        """The same as numpy arrays, with a histogram over texts if there is none over tokens."""
        if not isinstance(self.value, Tensor):
            return self
        histogram = self.histogram
        if histogram is None and not self.is_categorical:
            histogram = Histogram.from_values(self.value[..., None], self.value.isfinite()[..., None])
        largest, smallest = (
            None if extreme is None else (_to_numpy(extreme[0]), _to_numpy(extreme[1]))
            for extreme in (self.largest, self.smallest)
        )
        host_histogram = None if histogram is None else Histogram(histogram.size, None, None, *histogram.to_counts())
        return replace(self, value=_to_numpy(self.value), largest=largest, smallest=smallest, histogram=host_histogram)

    def to_field_values(self, text_ids: np.ndarray) -> FieldValues | None:
        """The input of a summary; None for categorical fields."""
        if self.is_categorical or self.value is None:
            return None
        host = self.to_host()
        assert host.histogram is not None
        value = host.value.reshape(len(text_ids), -1)
        without_token = value, np.broadcast_to(np.int32(-1), value.shape)
        largest_pair, smallest_pair = (
            without_token if extreme is None else extreme for extreme in (host.largest, host.smallest)
        )
        largest, largest_token, smallest, smallest_token = (
            x.reshape(len(text_ids), -1) for x in (*largest_pair, *smallest_pair)
        )
        bins, counts = host.histogram.to_counts()
        return FieldValues(text_ids, value, largest, largest_token, smallest, smallest_token, bins, counts)

    @staticmethod
    def join(parts: "Sequence[Cells | None]", sizes: Sequence[int]) -> "Cells":
        """Concatenate the field over texts. A part without the field counts as texts without a value."""
        first = next(part for part in parts if part is not None)
        if first.value is not None and len({part.shape for part in parts if part is not None}) > 1:
            raise RheoscopeError(
                Message("the coordinates along {axes} differ between texts", axes=", ".join(first.cell_dims))
            )
        filled_parts = [
            _missing_cells(first, size) if part is None else part for part, size in zip(parts, sizes, strict=True)
        ]

        def join_pairs(name: str) -> Any:
            values = [getattr(part, name) for part in filled_parts]
            return (
                None if values[0] is None else tuple(_concatenate([pair[index] for pair in values]) for index in (0, 1))
            )

        def join_field(name: str) -> Any:
            return (
                None if getattr(first, name) is None else _concatenate([getattr(part, name) for part in filled_parts])
            )

        histograms = [part.histogram for part in filled_parts if part.histogram is not None]
        return Cells(
            cell_dims=first.cell_dims,
            value=join_field("value"),
            token_dims=first.token_dims,
            token_values=None
            if first.token_values is None
            else _pad_and_concatenate([part.token_values for part in filled_parts if part.token_values is not None]),
            largest=join_pairs("largest"),
            smallest=join_pairs("smallest"),
            histogram=None if not histograms else Histogram.join(histograms),
            is_categorical=first.is_categorical,
        )


def reduce_to_cells(x: Tensor | np.ndarray, field: Field, keep_tokens: bool = True) -> Cells:
    """Reduce a field of a batch (text, *dims) to its cells."""
    text_dims = tuple(dim for dim in field.dims if dim in TEXT_AXES)
    cell_dims = tuple(dim for dim in field.dims if dim not in TEXT_AXES)
    if isinstance(x, np.ndarray):
        return Cells(cell_dims, None if text_dims else x, is_categorical=True)
    token_dims = field.dims if text_dims else ()
    token_values = _to_numpy(_to_storage_dtype(x)) if text_dims and keep_tokens else None
    if field.is_categorical:
        return Cells(
            cell_dims, None if text_dims else _to_storage_dtype(x), token_dims, token_values, is_categorical=True
        )
    if not text_dims:
        return Cells(cell_dims, _to_finite_float32(x))
    order = [1 + field.dims.index(dim) for dim in (*cell_dims, *text_dims)]
    flat = x.permute(0, *order).flatten(1 + len(cell_dims))
    is_integer = not x.is_floating_point() and x.dtype is not torch.bool
    numbers = torch.where(flat == -1, torch.nan, _to_finite_float32(flat)) if is_integer else _to_finite_float32(flat)
    is_finite = numbers.isfinite()
    value, largest, smallest = _reduce_items(numbers, is_finite)
    if text_dims != ("token",):
        largest, smallest = ((extreme[0], torch.full_like(extreme[1], -1)) for extreme in (largest, smallest))
    return Cells(
        cell_dims, value, token_dims, token_values, largest, smallest, Histogram.from_values(numbers, is_finite)
    )


def _to_finite_float32(x: Tensor) -> Tensor:
    """As float32, with NaN for all values that are not finite. −0 becomes 0."""
    x = x.float() + 0.0
    return torch.where(x.isfinite(), x, torch.nan)


Extreme = tuple[Tensor, Tensor]


def _reduce_items(x: Tensor, is_finite: Tensor) -> tuple[Tensor, Extreme, Extreme]:
    """The mean, maximum and minimum over the last axis (NaN if empty), and the first positions of the extremes."""
    has_items = is_finite.any(-1)
    mean = torch.where(is_finite, x, 0).double().sum(-1) / is_finite.sum(-1).clamp(min=1)
    largest, smallest = torch.where(is_finite, x, -torch.inf).max(-1), torch.where(is_finite, x, torch.inf).min(-1)
    value, largest_value, smallest_value = (
        torch.where(has_items, values, torch.nan) for values in (mean.float(), largest.values, smallest.values)
    )
    return value, (largest_value, largest.indices.int()), (smallest_value, smallest.indices.int())


def _to_numpy(x: Tensor) -> np.ndarray:
    return x.cpu().numpy()


def _concatenate(parts: Sequence[Any]) -> Any:
    """Concatenate along texts."""
    return torch.cat(list(parts)) if isinstance(parts[0], Tensor) else np.concatenate(parts)


def _to_storage_dtype(x: Tensor) -> Tensor:
    """In the dtype of the tables: float32, int32 or bool."""
    dtype = torch.float32 if x.is_floating_point() else x.dtype if x.dtype is torch.bool else torch.int32
    return x.to(dtype)


def _pad_and_concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate texts of different sizes, with padding."""
    if len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)
    shape = np.max([part.shape[1:] for part in parts], 0)
    fill: Any = np.nan if parts[0].dtype.kind == "f" else -1
    padded = np.full((sum(map(len, parts)), *shape), fill, parts[0].dtype)
    start = 0
    for part in parts:
        padded[(slice(start, start + len(part)), *(slice(size) for size in part.shape[1:]))] = part
        start += len(part)
    return padded


def _missing_cells(template: Cells, n_texts: int) -> Cells:
    """Cells of `n_texts` texts without a value."""

    def empty(x: Any) -> Any:
        if x is None:
            return None
        if isinstance(x, Tensor):
            return x.new_full((n_texts, *x.shape[1:]), torch.nan if x.is_floating_point() else -1)
        fill: Any = np.nan if x.dtype.kind == "f" else "" if x.dtype.kind == "U" else -1
        return np.full((n_texts, *x.shape[1:]), fill, x.dtype)

    def pair(x: tuple[Any, Any] | None) -> Any:
        return None if x is None else (empty(x[0]), empty(x[1]))

    empty_histogram = None if template.histogram is None else Histogram()
    return Cells(
        template.cell_dims,
        empty(template.value),
        template.token_dims,
        empty(template.token_values),
        pair(template.largest),
        pair(template.smallest),
        empty_histogram,
        template.is_categorical,
    )
