"""Position encodings of a Transformer: one module for each kind, with its trained or precomputed tables.

    PositionEncoding   none
    LearnedTable       x_i + table[i], trained
    SineTable          x_i + P(i), the sinusoidal table of 2017
    RotaryTables       queries and keys rotated by their position
    AlibiSlopes        bias −slope_h |i − j| for pairs of tokens
    BucketTable        bias table[bucket(j − i), h] for pairs of tokens, trained

`attention/position.py` has the formulas. A module keeps the tables, so that a forward pass does not compute them again.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

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
"""Rows of a bucket table, as in T5."""


class PositionEncoding(nn.Module):
    """No position encoding. Subclasses override one of the three ways in which a position acts."""

    def add_to_embeddings(self, x: Cloud, positions: slice) -> Cloud:
        """Embeddings plus what the position adds to them."""
        return x

    def rotation(self, positions: slice | Positions) -> RotaryMap | None:
        """The rotation of queries and keys at these positions."""
        return None

    def pair_bias(self) -> Position | None:
        """The bias for pairs of tokens."""
        return None

    def position(self) -> Position:
        """The position encoding of a View's mechanism, which acts on queries and keys or on scores."""
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
        table = sinusoidal_table(torch.arange(context), width).float()  # MPS has no float64
        self.register_buffer("table", table, persistent=False)

    def add_to_embeddings(self, x: Cloud, positions: slice) -> Cloud:
        return x + self.table[positions].to(x.dtype)


class RotaryTables(PositionEncoding):
    """x_i R(i) for queries and keys. Coordinate c is paired with c + k/2, as in Llama."""

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
        return ModelRotary(self._rotate, partial(self._rotate, sign=-1))

    def _rotate(self, x: PerHead, positions: Positions, sign: Literal[1, -1] = 1) -> PerHead:
        """Rotate (forward or back) with the module's tables, or with the formula beyond their end and on a GPU.

        On a GPU, looking up the largest position would wait for the device.
        """
        if not positions.is_cuda and int(positions.max()) < len(self.cos):
            cos, sin = self.cos[positions], self.sin[positions]
        else:
            tables = self._tables(positions if positions.is_cuda else positions.cpu())
            cos, sin = (table.to(x.device) for table in tables)
        return RotaryMap(cos, sign * sin, HALVES)(x)

    def _tables(self, positions: Positions) -> tuple[Tensor, Tensor]:
        cos, sin = rotary_tables(positions, self.width, self.base)
        return cos.float(), sin.float()


class AlibiSlopes(PositionEncoding):
    """−slope_h |i − j| for pairs of tokens."""

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def pair_bias(self) -> Position:
        return ALiBi(self.slopes)


class BucketTable(PositionEncoding):
    """table[bucket(j − i), h] for pairs of tokens, trained. A decoder uses every bucket for the past."""

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
"""How each `position` of a config is built. `causal` means that tokens attend only to the past."""
