"""Where a token stands. A position acts before the score (`place` moves q and k) or beside it (`bias` adds to it).

    NoPosition    nothing
    Sinusoidal    x + P(i), the sine table of 2017
    Learned       x + table[i]
    Rotary        x R(i): the score depends on i - j alone
    ALiBi         bias -slope_h |i - j|
    Buckets       bias table[bucket(j - i), h], T5's logarithmic buckets
    Bias          any additive table (h, m, n) or (b, h, m, n)

`Together(a, b)` places by a then b and adds both biases.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.feature_maps import of_heads, under
from rheoscope.attention.part import Part
from rheoscope.shapes import KeyAt, RheoscopeError, RowAt, Scores

Placed = Float[Tensor, "b h t d"]
At = Int[Tensor, " t"]
PairTable = Float[Tensor, "t half"]
Pulled = tuple[Tensor, dict[str, Tensor]]
Biases = Float[Tensor, "*#bh m n"]
PairBias = Callable[[Any, Any, Any, Any], Tensor]
"""Text, head, position of the query, position of the key."""


class Position(Part, ABC):
    """Where tokens stand, seen by the score; without one (`NoPosition`), permuting tokens permutes the result."""

    @abstractmethod
    def place(self, x: Placed, at: At) -> Placed: ...

    @abstractmethod
    def bias(self, i: RowAt, j: KeyAt) -> Biases | None: ...

    @abstractmethod
    def pull(self, at: At, dy: Placed) -> Pulled:
        """The gradient dy of the placed rows, taken back to the rows and to the position's own tensors."""

    @abstractmethod
    def pull_bias(self, i: RowAt, j: KeyAt, r: Scores) -> dict[str, Tensor]:
        """The gradient r of the scores, taken back to the tensors behind the bias."""

    def fit(self, b: int, h: int, m: int, n: int, d: int) -> None:
        """Refuse a call for which this position has the wrong shape."""

    @property
    def nowhere(self) -> bool:
        """Whether it does nothing at all."""
        return False

    @property
    def moves(self) -> bool:
        """Whether `place` changes tokens."""
        raise self.untold("moves", "whether it changes tokens before the score")

    def key_bias(self, j: KeyAt) -> Float[Tensor, "h n"] | None:
        """The bias as one number a key, up to a constant of the row, where no key lies ahead; None where it is not so."""
        return None

    @property
    def reach(self) -> int | None:
        """How far back its bias changes, where all keys so far back or farther have one bias; None where it is not so."""
        return None

    def pair_bias(self, m: int, n: int) -> PairBias | None:
        """The bias of text b and head h for query i and key j of a call, pair by pair; None where it has no such form."""
        return None

    def rotation(self, offset: int, width: int, like: Tensor) -> Float[Tensor, "k k"]:
        """R(delta) with place(q, i) place(k, j)^T = q R(i - j) k^T, where placing a token turns it."""
        raise self.untold("rotation", "how it turns tokens: it has no form that depends on their offset alone")


class Placing(Position):
    """A position that acts before the score alone."""

    moves = True

    def bias(self, i: RowAt, j: KeyAt) -> None:
        return None

    def pull_bias(self, i: RowAt, j: KeyAt, r: Scores) -> dict[str, Tensor]:
        return {}


class Biasing(Position):
    """A position that acts beside the score alone."""

    moves = False

    def place(self, x: Placed, at: At) -> Placed:
        return x

    def pull(self, at: At, dy: Placed) -> Pulled:
        return dy, {}


@dataclass(frozen=True, eq=False)
class NoPosition(Biasing):
    """No position at all."""

    nowhere = True

    def bias(self, i: RowAt, j: KeyAt) -> None:
        return None

    def pull_bias(self, i: RowAt, j: KeyAt, r: Scores) -> dict[str, Tensor]:
        return {}

    def of_heads(self, some: list[int]) -> "NoPosition":
        return self


def rotation_of(place: Callable[[Placed, At], Placed], offset: int, width: int, like: Tensor) -> Float[Tensor, "k k"]:
    """R(delta) of a map that turns tokens, read off what it does to the axes; `like` gives dtype and device."""
    at = torch.tensor([abs(offset), 0], device=like.device).repeat_interleave(width)
    rows = torch.eye(width, dtype=like.dtype, device=like.device).repeat(2, 1)
    far, here = place(rows[None, None], at)[0, 0].split(width)
    return far @ here.mT if offset >= 0 else here @ far.mT


def angles(at: At, width: int, base: float = 10000.0) -> Float[Tensor, "t half"]:
    """p base^{-2c/width} of position p and pair c, in float64: what sine tables and rotations are made of."""
    c = torch.arange(0, width, 2, dtype=torch.float64, device=at.device)
    return at[:, None].double() * base ** (-c / width)


def sinusoidal_table(at: At, width: int, base: float = 10000.0) -> Float[Tensor, "t d"]:
    """P(p)_{2c} = sin(p base^{-2c/d}), P(p)_{2c+1} = cos(the same): the table of arXiv:1706.03762, in float64.

    >>> sinusoidal_table(torch.arange(2), 4).shape
    torch.Size([2, 4])
    """
    angle = angles(at, width, base)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[:, :width]


@dataclass(frozen=True, eq=False)
class Sinusoidal(Placing):
    """q_i + P(i) and k_j + P(j)."""

    base: float = 10000.0

    def place(self, x: Placed, at: At) -> Placed:
        return x + sinusoidal_table(at, x.shape[-1], self.base).to(x.dtype)

    def pull(self, at: At, dy: Placed) -> Pulled:
        return dy, {}

    def of_heads(self, some: list[int]) -> "Sinusoidal":
        return self


@dataclass(frozen=True, eq=False)
class Learned(Placing):
    """q_i + table[i] and k_j + table[j]."""

    table: Float[Tensor, "positions d"]

    def place(self, x: Placed, at: At) -> Placed:
        if int(at[0]) < 0 or int(at[-1]) >= len(self.table):
            raise RheoscopeError(
                f"learned positions reach from 0 to {len(self.table) - 1}, got {int(at[0])} to {int(at[-1])}; "
                "type a shorter text or a longer table"
            )
        return x + self.table[at].to(x.dtype)

    def pull(self, at: At, dy: Placed) -> Pulled:
        table = torch.zeros_like(self.table)
        return dy, {"table": table.index_add(0, at, dy.sum((0, 1)).to(table.dtype))}

    def of_heads(self, some: list[int]) -> "Learned":
        return self


def rotary_tables(at: At, width: int, base: float = 10000.0) -> tuple[PairTable, PairTable]:
    """cos and sin of p base^{-2c/width} of position p and pair c, in float64.

    >>> rotary_tables(torch.arange(3), 8)[0].shape
    torch.Size([3, 4])
    """
    angle = angles(at, width, base)
    return angle.cos(), angle.sin()


@dataclass(frozen=True)
class Pairs:
    """Which coordinates turn together: `laid` puts a table for the first of each pair and one for the second where these
    coordinates are, `partner` puts on every coordinate the one that it turns with."""

    laid: Callable[[Tensor, Tensor], Tensor]
    partner: Callable[[Tensor], Tensor]


HALVES = Pairs(lambda a, b: torch.cat([a, b], -1), lambda x: x.roll(x.shape[-1] // 2, -1))
NEIGHBOURS = Pairs(
    lambda a, b: torch.stack([a, b], -1).flatten(-2), lambda x: x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
)
PAIRS = {"halves": HALVES, "neighbours": NEIGHBOURS}


class Turn:
    """x ↦ x R(p) by tables at hand, given back in x's dtype; laid out once, it turns queries and keys of every layer.

    No frozen value, and no default `pairs`: either breaks the graph of `torch.compile` inside a forward (torch 2.11).
    """

    def __init__(self, cos: PairTable, sin: PairTable, pairs: Pairs) -> None:
        self.cos, self.sin, self.partner = pairs.laid(cos, cos), pairs.laid(-sin, sin), pairs.partner

    def __call__(self, x: Placed) -> Placed:
        return (x * self.cos + self.partner(x) * self.sin).to(x.dtype)


@dataclass(frozen=True, eq=False)
class Rotary(Placing):
    """q_i R(i), k_j R(j) with R(i) R(j)^T = R(i - j): the score sees offsets alone (RoFormer, arXiv:2104.09864).

    Pair c of the first `width` coordinates (all of them by default) turns by the angle p base^{-2c/width}.
    `pairs="halves"` couples coordinate c with c + width/2 (Llama, NeoX), `"neighbours"` couples 2c with 2c + 1 (GPT-J).
    """

    base: float = 10000.0
    width: int | None = None
    pairs: Literal["halves", "neighbours"] = "halves"

    def __post_init__(self) -> None:
        if self.pairs not in PAIRS:
            raise RheoscopeError(f"unknown pairs {self.pairs!r}; type 'halves' (Llama, NeoX) or 'neighbours' (GPT-J)")
        if self.width is not None and (self.width < 2 or self.width % 2):
            raise RheoscopeError(
                f"rotary turns pairs of coordinates: an even width, got {self.width}; type width=2 or more"
            )

    def fit(self, b: int, h: int, m: int, n: int, d: int) -> None:
        if (self.width or d) > d or (self.width or d) % 2:
            raise RheoscopeError(
                f"rotary turns an even width of at most that of q, {d}, got width={self.width}; type width={d // 2 * 2}"
            )

    def place(self, x: Placed, at: At) -> Placed:
        width = self.width or x.shape[-1]
        cos, sin = (table.to(x.dtype) for table in rotary_tables(at, width, self.base))
        return torch.cat([Turn(cos, sin, PAIRS[self.pairs])(x[..., :width]), x[..., width:]], -1)

    def pull(self, at: At, dy: Placed) -> Pulled:
        return self.place(dy, -at), {}

    def rotation(self, offset: int, width: int, like: Tensor) -> Float[Tensor, "k k"]:
        return rotation_of(self.place, offset, width, like)

    def of_heads(self, some: list[int]) -> "Rotary":
        return self


@dataclass(frozen=True, eq=False)
class ALiBi(Biasing):
    """-slope_h |i - j| (arXiv:2108.12409)."""

    slopes: Float[Tensor, " h"]

    @property
    def exact(self) -> Float[Tensor, " h"]:
        """The slopes in float32 or better: half precision does not know all whole numbers beyond 256."""
        return self.slopes.to(torch.promote_types(self.slopes.dtype, torch.float32))

    def bias(self, i: RowAt, j: KeyAt) -> Biases:
        return -self.exact[:, None, None] * (i[:, None] - j).abs()

    def fit(self, b: int, h: int, m: int, n: int, d: int) -> None:
        if len(self.slopes) != h:
            raise _other_heads("slopes", self.slopes, h)

    def pull_bias(self, i: RowAt, j: KeyAt, r: Scores) -> dict[str, Tensor]:
        return {"slopes": -(r * (i[:, None] - j).abs()).sum((0, -2, -1)).to(self.slopes.dtype)}

    def key_bias(self, j: KeyAt) -> Float[Tensor, "h n"]:
        return self.exact[:, None] * j

    def pair_bias(self, m: int, n: int) -> PairBias:
        slopes = self.exact
        return lambda b, h, i, j: -slopes[h] * (i - j).abs()

    def of_heads(self, some: list[int]) -> "ALiBi":
        return replace(self, slopes=self.slopes[some])


def alibi_slopes(heads: int) -> Float[Tensor, " h"]:
    """2^{-8/h}, 2^{-16/h}, …; for a number of heads that is no power of two, the paper's interleaving.

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    whole = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (c + 1) / whole) for c in range(whole)]
    slopes += [2 ** (-4 * (2 * c + 1) / whole) for c in range(heads - whole)]
    return torch.tensor(slopes)


@dataclass(frozen=True, eq=False)
class Buckets(Biasing):
    """table[bucket(j - i), h]: T5's relative bias, exact for near offsets, logarithmic to `max_distance`."""

    table: Float[Tensor, "buckets h"]
    max_distance: int = 128
    bidirectional: bool = True

    def __post_init__(self) -> None:
        exact = len(self.table) // (4 if self.bidirectional else 2)
        if exact < 1 or self.max_distance <= exact:
            raise RheoscopeError(
                f"buckets need at least {4 if self.bidirectional else 2} rows and a max_distance above {exact} (those that are "
                f"exact), got {len(self.table)} rows and max_distance={self.max_distance}; type a table of 32 rows and 128"
            )

    def fit(self, b: int, h: int, m: int, n: int, d: int) -> None:
        if self.table.shape[-1] != h:
            raise _other_heads("table", self.table, h)

    def bias(self, i: RowAt, j: KeyAt) -> Biases:
        return self.table[self.bucket(j - i[:, None])].permute(2, 0, 1)

    def pull_bias(self, i: RowAt, j: KeyAt, r: Scores) -> dict[str, Tensor]:
        at, rows = self.bucket(j - i[:, None]).flatten(), r.sum(0).flatten(1).T.to(self.table.dtype)
        return {"table": torch.zeros_like(self.table).index_add(0, at, rows)}

    @property
    def reach(self) -> int:
        return self.max_distance

    def pair_bias(self, m: int, n: int) -> PairBias:
        """By offset: looked up once for all that there are."""
        most = max(m, n)
        shape = len(self.table), self.max_distance, self.bidirectional
        by_offset = self.table[_of_offsets(most, self.table.device, *shape)].float().mT.contiguous()
        return lambda b, h, i, j: by_offset[h, j - i + (most - 1)]

    def bucket(self, offset: Int[Tensor, "*mn"]) -> Int[Tensor, "*mn"]:
        return _bucket(offset, len(self.table), self.max_distance, self.bidirectional)

    def of_heads(self, some: list[int]) -> "Buckets":
        return replace(self, table=self.table[:, some])


def _bucket(offset: Int[Tensor, "*mn"], rows: int, max_distance: int, bidirectional: bool) -> Int[Tensor, "*mn"]:
    buckets = rows // 2 if bidirectional else rows
    ahead = (offset > 0) * buckets * bidirectional
    distance = offset.abs() if bidirectional else (-offset).clamp(min=0)
    far = torch.log(distance.clamp(min=1).float() / (exact := buckets // 2)) / math.log(max_distance / exact)
    far = (exact + (far * (buckets - exact)).long()).clamp(max=buckets - 1)  # cut first: the sum would round up
    return ahead + torch.where(distance < exact, distance, far)


@lru_cache(maxsize=8)
def _of_offsets(most: int, device: torch.device, *shape: Any) -> Int[Tensor, " offsets"]:
    """Buckets of 1 - most … most - 1: made once, as a GPU waits for each thing that it is asked."""
    return _bucket(torch.arange(1 - most, most, device=device), *shape)


@dataclass(frozen=True, eq=False)
class Bias(Biasing):
    """Any additive bias, given as a table (h, m, n) or (b, h, m, n) for the whole call."""

    table: Float[Tensor, "*bh m n"]

    def fit(self, b: int, h: int, m: int, n: int, d: int) -> None:
        *lead, rows, keys = self.table.shape
        heads, texts = ([1, 1, *lead])[:-3:-1]
        if (rows, keys) != (m, n) or heads not in (1, h) or texts not in (1, b) or len(lead) > 2:
            raise RheoscopeError(
                f"a bias for these q and k must have shape {(h, m, n)} or {(b, h, m, n)}, got {tuple(self.table.shape)}; "
                f"type Bias(torch.zeros{(h, m, n)})"
            )

    def bias(self, i: RowAt, j: KeyAt) -> Biases:
        m, n = self.table.shape[-2:]
        return self.table[..., (i - (n - m))[:, None], j]

    def pull_bias(self, i: RowAt, j: KeyAt, r: Scores) -> dict[str, Tensor]:
        return {"table": r.sum_to_size(self.table.shape).to(self.table.dtype)}

    def pair_bias(self, m: int, n: int) -> PairBias:
        table = self.table[(None,) * (4 - self.table.ndim)]
        texts, heads = (int(size > 1) for size in table.shape[:2])  # one for all stands at 0
        return lambda b, h, i, j: table[b * texts, h * heads, i - (n - m), j]

    def of_heads(self, some: list[int]) -> "Bias":
        return replace(self, table=of_heads(self.table, some, -3))


@dataclass(frozen=True, eq=False)
class Together(Position):
    """Place by a, then by b; add both biases."""

    a: Position
    b: Position

    def fit(self, b: int, h: int, m: int, n: int, d: int) -> None:
        self.a.fit(b, h, m, n, d)
        self.b.fit(b, h, m, n, d)

    def place(self, x: Placed, at: At) -> Placed:
        return self.b.place(self.a.place(x, at), at)

    def bias(self, i: RowAt, j: KeyAt) -> Biases | None:
        parts = [bias for part in (self.a, self.b) if (bias := part.bias(i, j)) is not None]
        return sum(parts[1:], parts[0]) if parts else None

    def pull(self, at: At, dy: Placed) -> Pulled:
        dy, of_b = self.b.pull(at, dy)
        dx, of_a = self.a.pull(at, dy)
        return dx, under("a", of_a) | under("b", of_b)

    def pull_bias(self, i: RowAt, j: KeyAt, r: Scores) -> dict[str, Tensor]:
        return under("a", self.a.pull_bias(i, j, r)) | under("b", self.b.pull_bias(i, j, r))

    def pair_bias(self, m: int, n: int) -> PairBias | None:
        both = [part for part in (self.a, self.b) if not (part.nowhere or part.moves)]
        found = [one for part in both if (one := part.pair_bias(m, n)) is not None]
        if not found or len(found) < len(both):
            return None
        return found[0] if len(found) == 1 else lambda b, h, i, j: found[0](b, h, i, j) + found[1](b, h, i, j)

    @property
    def moves(self) -> bool:
        return self.a.moves or self.b.moves

    def rotation(self, offset: int, width: int, like: Tensor) -> Float[Tensor, "k k"]:
        if self.a.moves and self.b.moves:
            return super().rotation(offset, width, like)
        return (self.a if self.a.moves else self.b).rotation(offset, width, like)

    def of_heads(self, some: list[int]) -> "Together":
        return replace(self, a=self.a.of_heads(some), b=self.b.of_heads(some))


def _other_heads(what: str, x: Tensor, h: int) -> RheoscopeError:
    return RheoscopeError(f"position.{what} {tuple(x.shape)} do not fit q of {h} heads; type one for each of {h} heads")
