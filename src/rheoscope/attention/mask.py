"""Which keys a query may see. A mask is a frozen value; `mask(i, j)` answers for positions i (rows) and j (columns).

Query r of m sits at position n - m + r, so that the last query sees the last key (a cache of past keys needs nothing
more). `a & b` permits what both permit. `mask.span(low, high, n)` bounds the keys that rows low..high-1 may see: a
lowering never computes a block outside it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rheoscope.attention.feature_maps import of_heads
from rheoscope.attention.part import Part
from rheoscope.shapes import KeyAt, Permitted, RheoscopeError, RowAt

Pair = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Text, head, position of the query, position of the key."""


class Mask(Part, ABC):
    """Which keys a query may see; `NoMask` permits all."""

    @abstractmethod
    def __call__(self, i: RowAt, j: KeyAt) -> Permitted: ...

    def __and__(self, other: "Mask") -> "Mask":
        return self if other.forbids_nothing else Both(self, other)

    def span(self, low: int, high: int, n: int) -> tuple[int, int]:
        return 0, n

    @property
    def pair(self) -> "Pair | None":
        """Whether text b and head h permit key j to query i, for kernels that ask pair by pair; None where it has no such form."""
        return None

    @property
    def by_head(self) -> bool:
        """Whether heads differ in it."""
        return False

    def fit(self, b: int, h: int, m: int, n: int) -> None:
        """Refuse a call for which a table of this mask has the wrong shape."""

    @property
    def sees_itself(self) -> bool:
        """Whether every token is sure to be permitted to itself."""
        return False

    @property
    def forbids_nothing(self) -> bool:
        return False

    @property
    def is_causal(self) -> bool:
        """Whether it permits j <= i and nothing else, as kernels know it by name."""
        return False


@dataclass(frozen=True, eq=False)
class NoMask(Mask):
    """Permits every key: the mask `none`."""

    forbids_nothing = True
    sees_itself = True

    def __call__(self, i: RowAt, j: KeyAt) -> Permitted:
        return torch.ones(len(i), len(j), dtype=torch.bool, device=i.device)

    def __and__(self, other: Mask) -> Mask:
        return other

    @property
    def pair(self) -> Pair:
        return lambda b, h, i, j: j >= 0

    def of_heads(self, some: list[int]) -> "NoMask":
        return self


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """j <= i: a token sees itself and the past."""

    is_causal = True
    sees_itself = True

    def __call__(self, i: RowAt, j: KeyAt) -> Permitted:
        return j <= i[:, None]

    def span(self, low: int, high: int, n: int) -> tuple[int, int]:
        return 0, max(min(high, n), 0)

    @property
    def pair(self) -> Pair:
        return lambda b, h, i, j: j <= i

    def of_heads(self, some: list[int]) -> "Causal":
        return self


@dataclass(frozen=True, eq=False)
class Window(Mask):
    """|i - j| < size. `Causal() & Window(size)` is the sliding window of Mistral and Gemma."""

    size: int

    sees_itself = True

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise RheoscopeError(
                f"a window permits at least the token itself: whole size >= 1, got {self.size}; type Window(128)"
            )

    def __call__(self, i: RowAt, j: KeyAt) -> Permitted:
        return (i[:, None] - j).abs() < self.size

    def span(self, low: int, high: int, n: int) -> tuple[int, int]:
        return min(max(low - self.size + 1, 0), n), max(min(high + self.size - 1, n), 0)

    @property
    def pair(self) -> Pair:
        size = self.size
        return lambda b, h, i, j: (i - j).abs() < size

    def of_heads(self, some: list[int]) -> "Window":
        return self


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """j <= i, or j < length: the prefix sees itself both ways, the rest is causal."""

    length: int

    sees_itself = True

    def __post_init__(self) -> None:
        if not isinstance(self.length, int) or self.length < 0:
            raise RheoscopeError(f"a prefix has a whole length of 0 or more, got {self.length}; type Prefix(16)")

    def __call__(self, i: RowAt, j: KeyAt) -> Permitted:
        return (j <= i[:, None]) | (j < self.length)

    def span(self, low: int, high: int, n: int) -> tuple[int, int]:
        return 0, max(min(max(high, self.length), n), 0)

    @property
    def pair(self) -> Pair:
        length = self.length
        return lambda b, h, i, j: (j <= i) | (j < length)

    def of_heads(self, some: list[int]) -> "Prefix":
        return self


@dataclass(frozen=True, eq=False)
class Others(Mask):
    """j != i: a token sees every token but itself. The first one sees itself too: under `Causal() & Others()` it has no other.

    >>> import torch
    >>> (Causal() & Others())(torch.arange(3), torch.arange(3)).int()
    tensor([[1, 0, 0],
            [1, 0, 0],
            [1, 1, 0]], dtype=torch.int32)
    """

    def __call__(self, i: RowAt, j: KeyAt) -> Permitted:
        return (i[:, None] != j) | (i[:, None] == 0)

    @property
    def pair(self) -> Pair:
        return lambda b, h, i, j: (i != j) | (i == 0)

    def of_heads(self, some: list[int]) -> "Others":
        return self


@dataclass(frozen=True, eq=False)
class Document(Mask):
    """Tokens of one packed row see each other only inside their own document: ids[b, i] == ids[b, j]."""

    ids: Int[Tensor, "b n"]

    sees_itself = True

    def __call__(self, i: RowAt, j: KeyAt) -> Permitted:
        return (self.ids[:, i, None] == self.ids[:, None, j])[:, None]

    def fit(self, b: int, h: int, m: int, n: int) -> None:
        _fit("Document ids", self.ids, [(b, n)])
        if m > n:
            raise RheoscopeError(
                f"a document mask needs every query to be one of the keys, got {m} queries and {n} keys; "
                "type a boolean tensor (m, n) for cross attention"
            )

    @property
    def pair(self) -> Pair:
        ids = self.ids
        return lambda b, h, i, j: ids[b, i] == ids[b, j]

    def of_heads(self, some: list[int]) -> "Document":
        return self


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Keys that are there: real[b, j] is False for padding, which no query sees."""

    real: Bool[Tensor, "b n"]

    def __call__(self, i: RowAt, j: KeyAt) -> Permitted:
        return self.real[:, None, None, j].expand(-1, 1, len(i), -1)

    def fit(self, b: int, h: int, m: int, n: int) -> None:
        if self.real.dtype is not torch.bool:
            raise RheoscopeError(
                f"a padding mask is boolean (True is a token), got {self.real.dtype}; type Padding(real.bool())"
            )
        _fit("a Padding mask", self.real, [(b, n)])

    @property
    def pair(self) -> Pair:
        real = self.real
        return lambda b, h, i, j: real[b, j]

    def of_heads(self, some: list[int]) -> "Padding":
        return self


@dataclass(frozen=True, eq=False)
class Table(Mask):
    """Any boolean table (m, n), (b, m, n) or (b, h, m, n); True permits."""

    permitted: Bool[Tensor, "*bh m n"]

    def __call__(self, i: RowAt, j: KeyAt) -> Permitted:
        m, n = self.permitted.shape[-2:]
        table = self.permitted[:, None] if self.permitted.ndim == 3 else self.permitted
        return table[..., (i - (n - m))[:, None], j]

    def fit(self, b: int, h: int, m: int, n: int) -> None:
        _fit(
            "a mask",
            self.permitted,
            [(m, n), (b, m, n), (1, m, n), (b, h, m, n), (b, 1, m, n), (1, h, m, n), (1, 1, m, n)],
        )

    @property
    def pair(self) -> Pair:
        table, (m, n) = self.permitted, self.permitted.shape[-2:]
        table = table[(None,) * (4 - table.ndim)] if table.ndim == 2 else table[:, None] if table.ndim == 3 else table
        texts, heads = (int(size > 1) for size in table.shape[:2])  # one for all stands at 0
        return lambda b, h, i, j: table[b * texts, h * heads, i - (n - m), j]

    @property
    def by_head(self) -> bool:
        return self.permitted.ndim == 4 and self.permitted.shape[1] > 1

    def of_heads(self, some: list[int]) -> "Table":
        return replace(self, permitted=of_heads(self.permitted, some, 1)) if self.permitted.ndim == 4 else self


@dataclass(frozen=True, eq=False)
class Both(Mask):
    """What a and b both permit."""

    a: Mask
    b: Mask

    @property
    def sees_itself(self) -> bool:
        return self.a.sees_itself and self.b.sees_itself

    def __call__(self, i: RowAt, j: KeyAt) -> Permitted:
        return self.a(i, j) & self.b(i, j)

    def fit(self, b: int, h: int, m: int, n: int) -> None:
        self.a.fit(b, h, m, n)
        self.b.fit(b, h, m, n)

    def span(self, low: int, high: int, n: int) -> tuple[int, int]:
        (a0, a1), (b0, b1) = self.a.span(low, high, n), self.b.span(low, high, n)
        return max(a0, b0), max(min(a1, b1), max(a0, b0))

    @property
    def pair(self) -> Pair | None:
        a, c = self.a.pair, self.b.pair
        return None if a is None or c is None else lambda b, h, i, j: a(b, h, i, j) & c(b, h, i, j)

    @property
    def by_head(self) -> bool:
        return self.a.by_head or self.b.by_head

    def of_heads(self, some: list[int]) -> "Both":
        return replace(self, a=self.a.of_heads(some), b=self.b.of_heads(some))


def _fit(what: str, table: Tensor, shapes: list[tuple[int, ...]]) -> None:
    if tuple(table.shape) not in shapes:
        wanted = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
        raise RheoscopeError(
            f"{what} for these q and k must have shape {wanted}, got {tuple(table.shape)}; type one of shape {shapes[0]}"
        )


NAMED: dict[str, Mask] = {"none": NoMask(), "causal": Causal()}


def as_mask(mask: "Mask | str | Tensor | None") -> Mask:
    """A mask from what a user types: None, "none", "causal", a boolean tensor (True permits) or a Mask.

    >>> as_mask("causal")
    Causal()
    >>> as_mask("casual")
    Traceback (most recent call last):
    rheoscope.shapes.RheoscopeError: unknown mask 'casual'; type 'none', 'causal', a boolean tensor or a Mask such as Causal() & Window(128)
    """
    if mask is None:
        return NoMask()
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, str) and mask in NAMED:
        return NAMED[mask]
    if isinstance(mask, Tensor):
        if mask.dtype is not torch.bool or mask.ndim not in (2, 3, 4):
            raise RheoscopeError(
                f"a mask tensor is boolean (True permits) of shape (m, n), (b, m, n) or (b, h, m, n), got {mask.dtype} "
                f"{tuple(mask.shape)}; a float bias is a position: replace(mechanism, position=Bias(tensor))"
            )
        return Table(mask)
    came = repr(mask) if isinstance(mask, str) else f"of type {type(mask).__name__}"
    raise RheoscopeError(
        f"unknown mask {came}; type 'none', 'causal', a boolean tensor or a Mask such as Causal() & Window(128)"
    )
