"""Positions that add a bias to the scores: ALiBi, T5 buckets and arbitrary tables."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.feature_maps import index_heads
from rheoscope.attention.position import BiasArray, PairBias, ScoreBias, head_count_error
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import KeyPositions, QueryPositions, RheoscopeError, Scores


@dataclass(frozen=True, eq=False)
class ALiBi(ScoreBias):
    """-slope_h |i - j| (arXiv:2108.12409)."""

    slopes: Float[Tensor, " h"]

    @property
    def float32_slopes(self) -> Float[Tensor, " h"]:
        """The slopes in float32 or better: half precision cannot represent every integer above 256."""
        return self.slopes.to(torch.promote_types(self.slopes.dtype, torch.float32))

    def bias(self, i: QueryPositions, j: KeyPositions) -> BiasArray:
        return -self.float32_slopes[:, None, None] * (i[:, None] - j).abs()

    def check_shapes(self, b: int, h: int, m: int, n: int, d: int) -> None:
        if len(self.slopes) != h:
            raise head_count_error("slopes", self.slopes, h)

    def pullback_bias(self, i: QueryPositions, j: KeyPositions, r: Scores) -> dict[str, Tensor]:
        return {"slopes": -(r * (i[:, None] - j).abs()).sum((0, -2, -1)).to(self.slopes.dtype)}

    def key_bias(self, j: KeyPositions) -> Float[Tensor, "h n"]:
        return self.float32_slopes[:, None] * j

    def pair_bias(self, m: int, n: int) -> PairBias:
        slopes = self.float32_slopes
        return lambda b, h, i, j: -slopes[h] * (i - j).abs()

    def select_heads(self, heads: list[int]) -> "ALiBi":
        return replace(self, slopes=self.slopes[heads])


def alibi_slopes(heads: int) -> Float[Tensor, " h"]:
    """2^{-8/h}, 2^{-16/h}, …; the paper's interleaving if the number of heads is not a power of two.

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    power_of_two = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (c + 1) / power_of_two) for c in range(power_of_two)]
    slopes += [2 ** (-4 * (2 * c + 1) / power_of_two) for c in range(heads - power_of_two)]
    return torch.tensor(slopes)


@dataclass(frozen=True, eq=False)
class Buckets(ScoreBias):
    """table[bucket(j - i), h]: T5's relative bias, exact for small offsets, logarithmic up to `max_distance`."""

    table: Float[Tensor, "buckets h"]
    max_distance: int = 128
    bidirectional: bool = True

    def __post_init__(self) -> None:
        n_exact = len(self.table) // (4 if self.bidirectional else 2)
        if n_exact < 1 or self.max_distance <= n_exact:
            raise RheoscopeError(
                Message(
                    "buckets need at least {minimum} rows and a max_distance above {n_exact} (the number of exact buckets), "
                    "got {rows} rows and max_distance={max_distance}",
                    minimum=4 if self.bidirectional else 2,
                    n_exact=n_exact,
                    rows=len(self.table),
                    max_distance=self.max_distance,
                ),
                Advice("Buckets(torch.zeros(32, heads), max_distance=128)"),
            )

    def check_shapes(self, b: int, h: int, m: int, n: int, d: int) -> None:
        if self.table.shape[-1] != h:
            raise head_count_error("table", self.table, h)

    def bias(self, i: QueryPositions, j: KeyPositions) -> BiasArray:
        return self.table[self.bucket_index(j - i[:, None])].permute(2, 0, 1)

    def pullback_bias(self, i: QueryPositions, j: KeyPositions, r: Scores) -> dict[str, Tensor]:
        buckets, bucket_grads = self.bucket_index(j - i[:, None]).flatten(), r.sum(0).flatten(1).T.to(self.table.dtype)
        return {"table": torch.zeros_like(self.table).index_add(0, buckets, bucket_grads)}

    @property
    def bias_horizon(self) -> int:
        return self.max_distance

    def pair_bias(self, m: int, n: int) -> PairBias:
        """The bias looked up by offset, in a table precomputed for all offsets."""
        max_length = max(m, n)
        bucket_settings = len(self.table), self.max_distance, self.bidirectional
        bias_by_offset = (
            self.table[_offset_buckets(max_length, self.table.device, *bucket_settings)].float().mT.contiguous()
        )
        return lambda b, h, i, j: bias_by_offset[h, j - i + (max_length - 1)]

    def bucket_index(self, offset: Int[Tensor, "*mn"]) -> Int[Tensor, "*mn"]:
        return _bucket_index(offset, len(self.table), self.max_distance, self.bidirectional)

    def select_heads(self, heads: list[int]) -> "Buckets":
        return replace(self, table=self.table[:, heads])


def _bucket_index(
    offset: Int[Tensor, "*mn"], n_rows: int, max_distance: int, bidirectional: bool
) -> Int[Tensor, "*mn"]:
    n_buckets = n_rows // 2 if bidirectional else n_rows
    future_shift = (offset > 0) * n_buckets * bidirectional
    distance = offset.abs() if bidirectional else (-offset).clamp(min=0)
    log_bucket = torch.log(distance.clamp(min=1).float() / (n_exact := n_buckets // 2)) / math.log(
        max_distance / n_exact
    )
    log_bucket = (n_exact + (log_bucket * (n_buckets - n_exact)).long()).clamp(
        max=n_buckets - 1
    )  # truncate before adding: the sum would round up
    return future_shift + torch.where(distance < n_exact, distance, log_bucket)


@lru_cache(maxsize=8)
def _offset_buckets(max_length: int, device: torch.device, *bucket_settings: Any) -> Int[Tensor, " offsets"]:
    """Buckets of the offsets 1 - max_length … max_length - 1, cached to avoid launch overhead."""
    return _bucket_index(torch.arange(1 - max_length, max_length, device=device), *bucket_settings)


@dataclass(frozen=True, eq=False)
class Bias(ScoreBias):
    """Any additive bias, as a table (h, m, n) or (b, h, m, n) for the whole call."""

    table: Float[Tensor, "*bh m n"]

    def check_shapes(self, b: int, h: int, m: int, n: int, d: int) -> None:
        *leading_shape, n_queries, n_keys = self.table.shape
        n_heads, n_texts = ([1, 1, *leading_shape])[:-3:-1]
        if (n_queries, n_keys) != (m, n) or n_heads not in (1, h) or n_texts not in (1, b) or len(leading_shape) > 2:
            raise RheoscopeError(
                Message(
                    "a bias for these q and k must have shape {shared} or {per_text}, got {received}",
                    shared=str((h, m, n)),
                    per_text=str((b, h, m, n)),
                    received=str(tuple(self.table.shape)),
                ),
                Advice(f"Bias(torch.zeros{(h, m, n)})"),
            )

    def bias(self, i: QueryPositions, j: KeyPositions) -> BiasArray:
        m, n = self.table.shape[-2:]
        return self.table[..., (i - (n - m))[:, None], j]

    def pullback_bias(self, i: QueryPositions, j: KeyPositions, r: Scores) -> dict[str, Tensor]:
        return {"table": r.sum_to_size(self.table.shape).to(self.table.dtype)}

    def pair_bias(self, m: int, n: int) -> PairBias:
        table = self.table[(None,) * (4 - self.table.ndim)]
        text_stride, head_stride = (int(size > 1) for size in table.shape[:2])  # a shared axis has stride 0
        return lambda b, h, i, j: table[b * text_stride, h * head_stride, i - (n - m), j]

    def select_heads(self, heads: list[int]) -> "Bias":
        return replace(self, table=index_heads(self.table, heads, -3))
