"""Where tokens stand in a Transformer: one small module for each kind of position, holding what it learns or looks up.

    Places          nothing: positions are not felt
    LearnedTable    x_i + table[i], trained
    SineTable       x_i + P(i), the sine table of 2017
    RotaryTables    queries and keys turned by their position
    AlibiSlopes     bias −slope_h |i − j| between tokens
    BucketTable     bias table[bucket(j − i), h] between tokens, trained

The formulas are those of `attention/position.py`; a module keeps their tables, so that a forward makes none of them again.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rheoscope.attention.position import (
    HALVES,
    ALiBi,
    Buckets,
    NoPosition,
    Position,
    Turn,
    alibi_slopes,
    rotary_tables,
    sinusoidal_table,
)
from rheoscope.models.config import Config
from rheoscope.space.head import Turned

Cloud = Float[Tensor, "b n d"]
PerHead = Float[Tensor, "b h n k"]
At = Int[Tensor, " n"]
BUCKETS = 32
"""Rows of a table of buckets, as in T5."""


class Places(nn.Module):
    """No position at all. The other kinds refine one of the three ways in which a position is felt."""

    def embedded(self, x: Cloud, at: slice) -> Cloud:
        """Embeddings with what position adds to them."""
        return x

    def turn(self, at: slice | At) -> Turn | None:
        """The rotation of queries and keys at these positions."""
        return None

    def between(self) -> Position | None:
        """The bias between pairs of tokens."""
        return None

    def position(self) -> Position:
        """The position that the mechanism of a View has: what acts on queries and keys, or on their scores."""
        return self.between() or NoPosition()


class LearnedTable(Places):
    """x_i + table[i], trained."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(context, width))
        nn.init.normal_(self.table, std=0.02)

    def embedded(self, x: Cloud, at: slice) -> Cloud:
        return x + self.table[at].to(x.dtype)


class SineTable(Places):
    """x_i + P(i) with the sines and cosines of 2017."""

    table: Tensor

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        table = sinusoidal_table(torch.arange(context), width).float()  # MPS knows no float64
        self.register_buffer("table", table, persistent=False)

    def embedded(self, x: Cloud, at: slice) -> Cloud:
        return x + self.table[at].to(x.dtype)


class RotaryTables(Places):
    """x_i R(i) for queries and keys, coordinate c coupled with c + k/2, as Llama turns."""

    cos: Tensor
    sin: Tensor

    def __init__(self, context: int, width: int, base: float) -> None:
        super().__init__()
        self.width, self.base = width, base
        for name, table in zip(("cos", "sin"), self._tables(torch.arange(context)), strict=True):
            self.register_buffer(name, table, persistent=False)

    def turn(self, at: slice | At) -> Turn:
        return Turn(self.cos[at], self.sin[at], HALVES)

    def position(self) -> Position:
        return Turned(self._turned)

    def _turned(self, x: PerHead, at: At) -> PerHead:
        """By the module's own tables; by their formula where these end, and on a GPU, which would have to be asked how far `at` goes."""
        if not at.is_cuda and int(at.max()) < len(self.cos):
            return self.turn(at)(x)
        cos, sin = (table.to(x.device) for table in self._tables(at if at.is_cuda else at.cpu()))
        return Turn(cos, sin, HALVES)(x)

    def _tables(self, at: At) -> tuple[Tensor, Tensor]:
        cos, sin = rotary_tables(at, self.width, self.base)
        return cos.float(), sin.float()


class AlibiSlopes(Places):
    """−slope_h |i − j| between tokens."""

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def between(self) -> Position:
        return ALiBi(self.slopes)


class BucketTable(Places):
    """table[bucket(j − i), h] between tokens, trained; a decoder spends every bucket on the past."""

    def __init__(self, heads: int, causal: bool) -> None:
        super().__init__()
        self.table, self.causal = nn.Parameter(torch.zeros(BUCKETS, heads)), causal

    def between(self) -> Position:
        return Buckets(self.table, bidirectional=not self.causal)


PLACES: dict[str, Callable[[Config, bool], Places]] = {
    "rotary": lambda config, causal: RotaryTables(config.context, config.head_width, config.base),
    "learned": lambda config, causal: LearnedTable(config.context, config.width),
    "sinusoidal": lambda config, causal: SineTable(config.context, config.width),
    "alibi": lambda config, causal: AlibiSlopes(config.heads),
    "buckets": lambda config, causal: BucketTable(config.heads, causal),
    "none": lambda config, causal: Places(),
}
"""How each `position` of a config is built; causal where tokens see the past alone."""
