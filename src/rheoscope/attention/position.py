"""Position encodings: maps of q and k before the score (`encode`), or additive score biases (`bias`).

    NoPosition        nothing
    Sinusoidal        x + P(i), the sinusoidal table of 2017
    LearnedPosition   x + table[i]
    Rotary            x R(i): the score depends only on i - j
    ALiBi             bias -slope_h |i - j|
    Buckets           bias table[bucket(j - i), h], T5's logarithmic buckets
    Bias              any additive table (h, m, n) or (b, h, m, n)

`CombinedPosition(a, b)` encodes by a, then by b, and adds both biases.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.feature_maps import prefix_keys
from rheoscope.attention.part import MechanismPart
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message, plural
from rheoscope.shapes import KeyPositions, QueryPositions, RheoscopeError, Scores

TokenRows = Float[Tensor, "b h t d"]
TokenPositions = Int[Tensor, " t"]
RotaryTable = Float[Tensor, "t half"]
Pullback = tuple[Tensor, dict[str, Tensor]]
BiasArray = Float[Tensor, "*#bh m n"]
PairBias = Callable[[Any, Any, Any, Any], Tensor]
"""Arguments: text, head, query position, key position."""


class Position(MechanismPart, ABC):
    """A position encoding; without one (`NoPosition`), permuting the tokens permutes the output."""

    @abstractmethod
    def encode(self, x: TokenRows, positions: TokenPositions) -> TokenRows: ...

    @abstractmethod
    def bias(self, i: QueryPositions, j: KeyPositions) -> BiasArray | None: ...

    @abstractmethod
    def pullback(self, positions: TokenPositions, dy: TokenRows) -> Pullback:
        """Gradients of the rows and of the position's tensors, from the gradient dy of the encoded rows."""

    @abstractmethod
    def pullback_bias(self, i: QueryPositions, j: KeyPositions, r: Scores) -> dict[str, Tensor]:
        """Gradients of the tensors of the bias, from the gradient r of the scores."""

    def check_shapes(self, b: int, h: int, m: int, n: int, d: int) -> None:
        """Raise if this position does not fit the shapes of the call."""

    @property
    def is_trivial(self) -> bool:
        """Whether it has no effect."""
        return False

    @property
    def changes_tokens(self) -> bool:
        """Whether `encode` changes tokens."""
        raise self.missing_method_error("changes_tokens", Message("whether it changes tokens before the score"))

    def key_bias(self, j: KeyPositions) -> Float[Tensor, "h n"] | None:
        """The bias as one number per key, up to a constant per row, for past keys; None without such a form."""
        return None

    @property
    def bias_horizon(self) -> int | None:
        """The distance beyond which all past keys have the same bias; None if there is none."""
        return None

    def pair_bias(self, m: int, n: int) -> PairBias | None:
        """The bias as a function of text b, head h, query i and key j of a call; None without such a form."""
        return None

    def rotation_matrix(self, offset: int, width: int, template: Tensor) -> Float[Tensor, "k k"]:
        """R(offset) with encode(q, i) encode(k, j)^T = q R(i - j) k^T, for an encoding that rotates tokens."""
        raise RheoscopeError(
            Message(
                "{position} has no rotation matrix: its encoding does not depend only on the offset between two tokens",
                position=type(self).__name__,
            )
        )


class TokenEncoding(Position):
    """A position that only maps tokens before the score."""

    changes_tokens = True

    def bias(self, i: QueryPositions, j: KeyPositions) -> None:
        return None

    def pullback_bias(self, i: QueryPositions, j: KeyPositions, r: Scores) -> dict[str, Tensor]:
        return {}


class ScoreBias(Position):
    """A position that only adds a bias to the score."""

    changes_tokens = False

    def encode(self, x: TokenRows, positions: TokenPositions) -> TokenRows:
        return x

    def pullback(self, positions: TokenPositions, dy: TokenRows) -> Pullback:
        return dy, {}


@dataclass(frozen=True, eq=False)
class NoPosition(ScoreBias):
    """No position encoding."""

    is_trivial = True

    def bias(self, i: QueryPositions, j: KeyPositions) -> None:
        return None

    def pullback_bias(self, i: QueryPositions, j: KeyPositions, r: Scores) -> dict[str, Tensor]:
        return {}

    def select_heads(self, heads: list[int]) -> "NoPosition":
        return self


def rotation_from_encoding(
    encode: Callable[[TokenRows, TokenPositions], TokenRows], offset: int, width: int, template: Tensor
) -> Float[Tensor, "k k"]:
    """R(offset) of an encoding that rotates tokens, from its images of the axes; dtype and device of `template`."""
    positions = torch.tensor([abs(offset), 0], device=template.device).repeat_interleave(width)
    rows = torch.eye(width, dtype=template.dtype, device=template.device).repeat(2, 1)
    rows_at_offset, rows_at_zero = encode(rows[None, None], positions)[0, 0].split(width)
    return rows_at_offset @ rows_at_zero.mT if offset >= 0 else rows_at_zero @ rows_at_offset.mT


def angles(positions: TokenPositions, width: int, base: float = 10000.0) -> Float[Tensor, "t half"]:
    """Angles p base^{-2c/width} of position p and pair c in float64, for sinusoidal tables and rotations."""
    c = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    return positions[:, None].double() * base ** (-c / width)


def sinusoidal_table(positions: TokenPositions, width: int, base: float = 10000.0) -> Float[Tensor, "t d"]:
    """P(p)_{2c} = sin(p base^{-2c/d}), P(p)_{2c+1} = cos(p base^{-2c/d}), in float64 (arXiv:1706.03762).

    >>> sinusoidal_table(torch.arange(2), 4).shape
    torch.Size([2, 4])
    """
    angle = angles(positions, width, base)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[:, :width]


@dataclass(frozen=True, eq=False)
class Sinusoidal(TokenEncoding):
    """q_i + P(i) and k_j + P(j)."""

    base: float = 10000.0

    def encode(self, x: TokenRows, positions: TokenPositions) -> TokenRows:
        return x + sinusoidal_table(positions, x.shape[-1], self.base).to(x.dtype)

    def pullback(self, positions: TokenPositions, dy: TokenRows) -> Pullback:
        return dy, {}

    def select_heads(self, heads: list[int]) -> "Sinusoidal":
        return self


@dataclass(frozen=True, eq=False)
class LearnedPosition(TokenEncoding):
    """q_i + table[i] and k_j + table[j]."""

    table: Float[Tensor, "positions d"]

    def encode(self, x: TokenRows, positions: TokenPositions) -> TokenRows:
        if int(positions[0]) < 0 or int(positions[-1]) >= len(self.table):
            raise RheoscopeError(
                Message(
                    "learned positions range from 0 to {last}, got {low} to {high}",
                    last=len(self.table) - 1,
                    low=int(positions[0]),
                    high=int(positions[-1]),
                )
            )
        return x + self.table[positions].to(x.dtype)

    def pullback(self, positions: TokenPositions, dy: TokenRows) -> Pullback:
        grad_table = torch.zeros_like(self.table)
        return dy, {"table": grad_table.index_add(0, positions, dy.sum((0, 1)).to(grad_table.dtype))}

    def select_heads(self, heads: list[int]) -> "LearnedPosition":
        return self


def rotary_tables(positions: TokenPositions, width: int, base: float = 10000.0) -> tuple[RotaryTable, RotaryTable]:
    """cos and sin of the angle p base^{-2c/width} of position p and pair c, in float64.

    >>> rotary_tables(torch.arange(3), 8)[0].shape
    torch.Size([3, 4])
    """
    angle = angles(positions, width, base)
    return angle.cos(), angle.sin()


@dataclass(frozen=True)
class CoordinatePairing:
    """Which coordinates rotate together.

    `arrange` interleaves a table for the first and one for the second coordinate of each pair; `swap_partners` exchanges
    the coordinates of each pair.
    """

    arrange: Callable[[Tensor, Tensor], Tensor]
    swap_partners: Callable[[Tensor], Tensor]


HALVES = CoordinatePairing(lambda a, b: torch.cat([a, b], -1), lambda x: x.roll(x.shape[-1] // 2, -1))
NEIGHBOURS = CoordinatePairing(
    lambda a, b: torch.stack([a, b], -1).flatten(-2), lambda x: x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
)
PAIRINGS = {"halves": HALVES, "neighbours": NEIGHBOURS}


class RotaryMap:
    """x ↦ x R(p) from precomputed tables, in the dtype of x; one instance serves the queries and keys of every layer.

    It is not a frozen dataclass and `pairs` has no default: either breaks the graph of `torch.compile` (torch 2.11).
    """

    def __init__(self, cos: RotaryTable, sin: RotaryTable, pairs: CoordinatePairing) -> None:
        self.cos, self.sin, self.swap_partners = pairs.arrange(cos, cos), pairs.arrange(-sin, sin), pairs.swap_partners

    def __call__(self, x: TokenRows) -> TokenRows:
        return (x * self.cos + self.swap_partners(x) * self.sin).to(x.dtype)


@dataclass(frozen=True, eq=False)
class Rotary(TokenEncoding):
    """q_i R(i), k_j R(j) with R(i) R(j)^T = R(i - j): the score depends only on offsets (RoFormer, arXiv:2104.09864).

    Pair c of the first `width` coordinates (all by default) rotates by the angle p base^{-2c/width}.
    `pairs="halves"` pairs coordinate c with c + width/2 (Llama, NeoX); `"neighbours"` pairs 2c with 2c + 1 (GPT-J).
    """

    base: float = 10000.0
    width: int | None = None
    pairs: Literal["halves", "neighbours"] = "halves"

    def __post_init__(self) -> None:
        if self.pairs not in PAIRINGS:
            raise RheoscopeError(
                Message(
                    "pairs must be 'halves' (Llama, NeoX) or 'neighbours' (GPT-J), got {received!r}",
                    received=self.pairs,
                ),
                Advice("Rotary(pairs='halves')"),
            )
        if self.width is not None and (self.width < 2 or self.width % 2):
            raise RheoscopeError(
                Message("rotary needs an even width of at least 2, got {received}", received=self.width),
                Advice(f"Rotary(width={max(2, self.width // 2 * 2)})"),
            )

    def check_shapes(self, b: int, h: int, m: int, n: int, d: int) -> None:
        if (self.width or d) > d or (self.width or d) % 2:
            raise RheoscopeError(
                Message(
                    "rotary needs an even width of at most {maximum} (the width of q), got width={received}",
                    maximum=d,
                    received=str(self.width),
                ),
                Advice(f"Rotary(width={d // 2 * 2})"),
            )

    def encode(self, x: TokenRows, positions: TokenPositions) -> TokenRows:
        width = self.width or x.shape[-1]
        cos, sin = (table.to(x.dtype) for table in rotary_tables(positions, width, self.base))
        return torch.cat([RotaryMap(cos, sin, PAIRINGS[self.pairs])(x[..., :width]), x[..., width:]], -1)

    def pullback(self, positions: TokenPositions, dy: TokenRows) -> Pullback:
        return self.encode(dy, -positions), {}

    def rotation_matrix(self, offset: int, width: int, template: Tensor) -> Float[Tensor, "k k"]:
        return rotation_from_encoding(self.encode, offset, width, template)

    def select_heads(self, heads: list[int]) -> "Rotary":
        return self


@dataclass(frozen=True, eq=False)
class CombinedPosition(Position):
    """Encode by a, then by b; add both biases."""

    a: Position
    b: Position

    def check_shapes(self, b: int, h: int, m: int, n: int, d: int) -> None:
        self.a.check_shapes(b, h, m, n, d)
        self.b.check_shapes(b, h, m, n, d)

    def encode(self, x: TokenRows, positions: TokenPositions) -> TokenRows:
        return self.b.encode(self.a.encode(x, positions), positions)

    def bias(self, i: QueryPositions, j: KeyPositions) -> BiasArray | None:
        biases = [bias for part in (self.a, self.b) if (bias := part.bias(i, j)) is not None]
        return sum(biases[1:], biases[0]) if biases else None

    def pullback(self, positions: TokenPositions, dy: TokenRows) -> Pullback:
        dy, grads_b = self.b.pullback(positions, dy)
        dx, grads_a = self.a.pullback(positions, dy)
        return dx, prefix_keys("a", grads_a) | prefix_keys("b", grads_b)

    def pullback_bias(self, i: QueryPositions, j: KeyPositions, r: Scores) -> dict[str, Tensor]:
        return prefix_keys("a", self.a.pullback_bias(i, j, r)) | prefix_keys("b", self.b.pullback_bias(i, j, r))

    def pair_bias(self, m: int, n: int) -> PairBias | None:
        biased_parts = [part for part in (self.a, self.b) if not (part.is_trivial or part.changes_tokens)]
        pair_biases = [pair_bias for part in biased_parts if (pair_bias := part.pair_bias(m, n)) is not None]
        if not pair_biases or len(pair_biases) < len(biased_parts):
            return None
        return (
            pair_biases[0]
            if len(pair_biases) == 1
            else lambda b, h, i, j: pair_biases[0](b, h, i, j) + pair_biases[1](b, h, i, j)
        )

    @property
    def changes_tokens(self) -> bool:
        return self.a.changes_tokens or self.b.changes_tokens

    def rotation_matrix(self, offset: int, width: int, template: Tensor) -> Float[Tensor, "k k"]:
        if self.a.changes_tokens and self.b.changes_tokens:
            return super().rotation_matrix(offset, width, template)
        return (self.a if self.a.changes_tokens else self.b).rotation_matrix(offset, width, template)

    def select_heads(self, heads: list[int]) -> "CombinedPosition":
        return replace(self, a=self.a.select_heads(heads), b=self.b.select_heads(heads))


def head_count_error(name: str, table: Tensor, h: int) -> RheoscopeError:
    return RheoscopeError(
        plural(
            "position.{name} must have one entry per head, got shape {shape} for {n} head",
            "position.{name} must have one entry per head, got shape {shape} for {n} heads",
            n=h,
            name=name,
            shape=str(tuple(table.shape)),
        ),
        Advice(f"ALiBi(alibi_slopes({h}))" if name == "slopes" else f"Buckets(torch.zeros({len(table)}, {h}))"),
    )
