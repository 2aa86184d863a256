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

from rheoscope.attention.position import HALVES, NoPosition, Position, RotaryMap, rotary_tables, sinusoidal_table
from rheoscope.attention.position_bias import ALiBi, Buckets, alibi_slopes
from rheoscope.models.config import Config
from rheoscope.space.model_parts import ModelRotary

Cloud = Float[Tensor, "b n d"]
PerHead = Float[Tensor, "b h n k"]
Positions = Int[Tensor, " n"]
N_BUCKETS = 32
"""Rows of a table of buckets, as in T5."""


class PositionEncoding(nn.Module):
    """No position at all. The other kinds refine one of the three ways in which a position is felt."""

    def add_to_embeddings(self, x: Cloud, positions: slice) -> Cloud:
        """Embeddings with what position adds to them."""
        return x

    def rotation(self, positions: slice | Positions) -> RotaryMap | None:
        """The rotation of queries and keys at these positions."""
        return None

    def pair_bias(self) -> Position | None:
        """The bias between pairs of tokens."""
        return None

    def position(self) -> Position:
        """The position that the mechanism of a View has: what acts on queries and keys, or on their scores."""
        return self.pair_bias() or NoPosition()


class LearnedTable(PositionEncoding):
    """x_i + table[i], trained."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(context, width))
        nn.init.normal_(self.table, std=0.02)

    def add_to_embeddings(self, x: Cloud, positions: slice) -> Cloud:
        return x + self.table[positions].to(x.dtype)


class SineTable(PositionEncoding):
    """x_i + P(i) with the sines and cosines of 2017."""

    table: Tensor

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        table = sinusoidal_table(torch.arange(context), width).float()  # MPS knows no float64
        self.register_buffer("table", table, persistent=False)

    def add_to_embeddings(self, x: Cloud, positions: slice) -> Cloud:
        return x + self.table[positions].to(x.dtype)


class RotaryTables(PositionEncoding):
    """x_i R(i) for queries and keys, coordinate c coupled with c + k/2, as Llama turns."""

    cos: Tensor
    sin: Tensor

    def __init__(self, context: int, width: int, base: float) -> None:
        super().__init__()
        self.width, self.base = width, base
        for name, table in zip(("cos", "sin"), self._tables(torch.arange(context)), strict=True):
            self.register_buffer(name, table, persistent=False)

    def rotation(self, positions: slice | Positions) -> RotaryMap:
        return RotaryMap(self.cos[positions], self.sin[positions], HALVES)

    def position(self) -> Position:
        return ModelRotary(self._rotate)

    def _rotate(self, x: PerHead, positions: Positions) -> PerHead:
        """By the module's own tables; by their formula where these end, and on a GPU, which would have to be asked how far `at` goes."""
        if not positions.is_cuda and int(positions.max()) < len(self.cos):
            return self.rotation(positions)(x)
        cos, sin = (table.to(x.device) for table in self._tables(positions if positions.is_cuda else positions.cpu()))
        return RotaryMap(cos, sin, HALVES)(x)

    def _tables(self, positions: Positions) -> tuple[Tensor, Tensor]:
        cos, sin = rotary_tables(positions, self.width, self.base)
        return cos.float(), sin.float()


class AlibiSlopes(PositionEncoding):
    """−slope_h |i − j| between tokens."""

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def pair_bias(self) -> Position:
        return ALiBi(self.slopes)


class BucketTable(PositionEncoding):
    """table[bucket(j − i), h] between tokens, trained; a decoder spends every bucket on the past."""

    def __init__(self, heads: int, causal: bool) -> None:
        super().__init__()
        self.table, self.causal = nn.Parameter(torch.zeros(N_BUCKETS, heads)), causal

    def pair_bias(self) -> Position:
        return Buckets(self.table, bidirectional=not self.causal)


POSITION_ENCODINGS: dict[str, Callable[[Config, bool], PositionEncoding]] = {
    "rotary": lambda config, causal: RotaryTables(config.context, config.head_width, config.base),
    "learned": lambda config, causal: LearnedTable(config.context, config.width),
    "sinusoidal": lambda config, causal: SineTable(config.context, config.width),
    "alibi": lambda config, causal: AlibiSlopes(config.heads),
    "buckets": lambda config, causal: BucketTable(config.heads, causal),
    "none": lambda config, causal: PositionEncoding(),
}
"""How each `position` of a config is built; causal where tokens see the past alone."""
