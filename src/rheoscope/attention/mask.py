"""Masks: which keys each query may attend to.

A mask is a frozen dataclass. `mask(i, j)` returns a boolean array for query positions i (rows) and key positions j
(columns). Query r of m is at position n - m + r, so the last query sees the last key, as a cache of past keys requires.
`a & b` allows the pairs that both allow. `mask.key_range(row_start, row_stop, n)` bounds the keys that these rows
may see, so a lowering never computes a block outside it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rheoscope.attention.feature_maps import index_heads
from rheoscope.attention.part import MechanismPart
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import AllowedMask, KeyPositions, QueryPositions, RheoscopeError

PairMask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Arguments: text, head, query position, key position."""


class Mask(MechanismPart, ABC):
    """Which keys a query may attend to; `NoMask` allows all."""

    @abstractmethod
    def __call__(self, i: QueryPositions, j: KeyPositions) -> AllowedMask: ...

    def __and__(self, other: "Mask") -> "Mask":
        return self if other.allows_all else Intersection(self, other)

    def key_range(self, row_start: int, row_stop: int, n: int) -> tuple[int, int]:
        return 0, n

    @property
    def pair_mask(self) -> "PairMask | None":
        """The mask as a function of text b, head h, query i and key j, for pairwise kernels; None without such a form."""
        return None

    @property
    def is_per_head(self) -> bool:
        """Whether it differs between heads."""
        return False

    def check_shapes(self, b: int, h: int, m: int, n: int) -> None:
        """Raise if an array of this mask has the wrong shape for the call."""

    @property
    def allows_self(self) -> bool:
        """Whether every token is guaranteed to see itself."""
        return False

    @property
    def allows_all(self) -> bool:
        return False

    @property
    def is_causal(self) -> bool:
        """Whether it is exactly j <= i, which kernels implement natively."""
        return False

    @property
    def is_strictly_causal(self) -> bool:
        """Whether it is exactly j < i, except that the first token sees itself."""
        return False

    @property
    def excludes_self(self) -> bool:
        """Whether it is exactly j != i, except that the first token sees itself."""
        return False


@dataclass(frozen=True, eq=False)
class NoMask(Mask):
    """Allows every key: the mask `none`."""

    allows_all = True
    allows_self = True

    def __call__(self, i: QueryPositions, j: KeyPositions) -> AllowedMask:
        return torch.ones(len(i), len(j), dtype=torch.bool, device=i.device)

    def __and__(self, other: Mask) -> Mask:
        return other

    @property
    def pair_mask(self) -> PairMask:
        return lambda b, h, i, j: j >= 0

    def select_heads(self, heads: list[int]) -> "NoMask":
        return self


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """j <= i: a token sees itself and the past."""

    is_causal = True
    allows_self = True

    def __call__(self, i: QueryPositions, j: KeyPositions) -> AllowedMask:
        return j <= i[:, None]

    def key_range(self, row_start: int, row_stop: int, n: int) -> tuple[int, int]:
        return 0, max(min(row_stop, n), 0)

    @property
    def pair_mask(self) -> PairMask:
        return lambda b, h, i, j: j <= i

    def select_heads(self, heads: list[int]) -> "Causal":
        return self


@dataclass(frozen=True, eq=False)
class Window(Mask):
    """|i - j| < size. `Causal() & Window(size)` is the sliding window of Mistral and Gemma."""

    size: int

    allows_self = True

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise RheoscopeError(
                Message("a window needs an integer size of at least 1, got {received}", received=str(self.size)),
                Advice("Window(128)"),
            )

    def __call__(self, i: QueryPositions, j: KeyPositions) -> AllowedMask:
        return (i[:, None] - j).abs() < self.size

    def key_range(self, row_start: int, row_stop: int, n: int) -> tuple[int, int]:
        return min(max(row_start - self.size + 1, 0), n), max(min(row_stop + self.size - 1, n), 0)

    @property
    def pair_mask(self) -> PairMask:
        size = self.size
        return lambda b, h, i, j: (i - j).abs() < size

    def select_heads(self, heads: list[int]) -> "Window":
        return self


@dataclass(frozen=True, eq=False)
class Chunks(Mask):
    """i and j are in the same chunk of `size` positions. `Causal() & Chunks(size)` is the chunked attention of Llama 4.

    >>> import torch
    >>> (Causal() & Chunks(2))(torch.arange(4), torch.arange(4)).int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [0, 0, 1, 0],
            [0, 0, 1, 1]], dtype=torch.int32)
    """

    size: int

    allows_self = True

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise RheoscopeError(
                Message("chunks need an integer size of at least 1, got {received}", received=str(self.size)),
                Advice("Chunks(128)"),
            )

    def __call__(self, i: QueryPositions, j: KeyPositions) -> AllowedMask:
        return i[:, None] // self.size == j // self.size

    def key_range(self, row_start: int, row_stop: int, n: int) -> tuple[int, int]:
        start, stop = row_start // self.size * self.size, -(-row_stop // self.size) * self.size
        return min(max(start, 0), n), min(max(stop, 0), n)

    @property
    def pair_mask(self) -> PairMask:
        size = self.size
        return lambda b, h, i, j: i // size == j // size

    def select_heads(self, heads: list[int]) -> "Chunks":
        return self


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """j <= i, or j < length: bidirectional inside the prefix, causal after it."""

    length: int

    allows_self = True

    def __post_init__(self) -> None:
        if not isinstance(self.length, int) or self.length < 0:
            raise RheoscopeError(
                Message("a prefix needs an integer length of at least 0, got {received}", received=str(self.length)),
                Advice("Prefix(16)"),
            )

    def __call__(self, i: QueryPositions, j: KeyPositions) -> AllowedMask:
        return (j <= i[:, None]) | (j < self.length)

    def key_range(self, row_start: int, row_stop: int, n: int) -> tuple[int, int]:
        return 0, max(min(max(row_stop, self.length), n), 0)

    @property
    def pair_mask(self) -> PairMask:
        length = self.length
        return lambda b, h, i, j: (j <= i) | (j < length)

    def select_heads(self, heads: list[int]) -> "Prefix":
        return self


@dataclass(frozen=True, eq=False)
class ExcludeSelf(Mask):
    """j != i, except that the first token sees itself: under `Causal() & ExcludeSelf()` it has no other key.

    >>> import torch
    >>> (Causal() & ExcludeSelf())(torch.arange(3), torch.arange(3)).int()
    tensor([[1, 0, 0],
            [1, 0, 0],
            [1, 1, 0]], dtype=torch.int32)
    """

    excludes_self = True

    def __call__(self, i: QueryPositions, j: KeyPositions) -> AllowedMask:
        return (i[:, None] != j) | (i[:, None] == 0)

    @property
    def pair_mask(self) -> PairMask:
        return lambda b, h, i, j: (i != j) | (i == 0)

    def select_heads(self, heads: list[int]) -> "ExcludeSelf":
        return self


@dataclass(frozen=True, eq=False)
class SameDocument(Mask):
    """Tokens of a packed sequence see only their own document: ids[b, i] == ids[b, j]."""

    ids: Int[Tensor, "b n"]

    allows_self = True

    def __call__(self, i: QueryPositions, j: KeyPositions) -> AllowedMask:
        return (self.ids[:, i, None] == self.ids[:, None, j])[:, None]

    def check_shapes(self, b: int, h: int, m: int, n: int) -> None:
        _check_table_shape(Message("document ids"), self.ids, [(b, n)])
        if m > n:
            raise RheoscopeError(
                Message(
                    "a document mask needs every query among the keys, got {m} queries and {n} keys; "
                    "cross attention needs a boolean mask of shape ({m}, {n})",
                    m=m,
                    n=n,
                ),
                Advice(f"mask=torch.ones({m}, {n}, dtype=torch.bool)"),
            )

    @property
    def pair_mask(self) -> PairMask:
        ids = self.ids
        return lambda b, h, i, j: ids[b, i] == ids[b, j]

    def select_heads(self, heads: list[int]) -> "SameDocument":
        return self


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Hides padding: no query sees key j where is_token[b, j] is False."""

    is_token: Bool[Tensor, "b n"]

    def __call__(self, i: QueryPositions, j: KeyPositions) -> AllowedMask:
        return self.is_token[:, None, None, j].expand(-1, 1, len(i), -1)

    def check_shapes(self, b: int, h: int, m: int, n: int) -> None:
        if self.is_token.dtype is not torch.bool:
            raise RheoscopeError(
                Message(
                    "a padding mask must be boolean (True for tokens), got {dtype}", dtype=str(self.is_token.dtype)
                ),
                Advice("Padding(is_token.bool())"),
            )
        _check_table_shape(Message("a padding mask"), self.is_token, [(b, n)])

    @property
    def pair_mask(self) -> PairMask:
        is_token = self.is_token
        return lambda b, h, i, j: is_token[b, j]

    def select_heads(self, heads: list[int]) -> "Padding":
        return self


@dataclass(frozen=True, eq=False)
class BooleanMask(Mask):
    """Any boolean array (m, n), (b, m, n) or (b, h, m, n); True allows the pair."""

    allowed: Bool[Tensor, "*bh m n"]

    def __call__(self, i: QueryPositions, j: KeyPositions) -> AllowedMask:
        m, n = self.allowed.shape[-2:]
        table = self.allowed[:, None] if self.allowed.ndim == 3 else self.allowed
        return table[..., (i - (n - m))[:, None], j]

    def check_shapes(self, b: int, h: int, m: int, n: int) -> None:
        _check_table_shape(
            Message("a mask"),
            self.allowed,
            [(m, n), (b, m, n), (1, m, n), (b, h, m, n), (b, 1, m, n), (1, h, m, n), (1, 1, m, n)],
        )

    @property
    def pair_mask(self) -> PairMask:
        table, (m, n) = self.allowed, self.allowed.shape[-2:]
        table = table[(None,) * (4 - table.ndim)] if table.ndim == 2 else table[:, None] if table.ndim == 3 else table
        text_stride, head_stride = (int(size > 1) for size in table.shape[:2])  # a shared axis has stride 0
        return lambda b, h, i, j: table[b * text_stride, h * head_stride, i - (n - m), j]

    @property
    def is_per_head(self) -> bool:
        return self.allowed.ndim == 4 and self.allowed.shape[1] > 1

    def select_heads(self, heads: list[int]) -> "BooleanMask":
        return replace(self, allowed=index_heads(self.allowed, heads, 1)) if self.allowed.ndim == 4 else self


@dataclass(frozen=True, eq=False)
class Intersection(Mask):
    """The pairs that both a and b allow."""

    a: Mask
    b: Mask

    @property
    def allows_self(self) -> bool:
        return self.a.allows_self and self.b.allows_self

    @property
    def is_strictly_causal(self) -> bool:
        return (self.a.is_causal and self.b.excludes_self) or (self.a.excludes_self and self.b.is_causal)

    def __call__(self, i: QueryPositions, j: KeyPositions) -> AllowedMask:
        return self.a(i, j) & self.b(i, j)

    def check_shapes(self, b: int, h: int, m: int, n: int) -> None:
        self.a.check_shapes(b, h, m, n)
        self.b.check_shapes(b, h, m, n)

    def key_range(self, row_start: int, row_stop: int, n: int) -> tuple[int, int]:
        (a_start, a_stop), (b_start, b_stop) = (
            self.a.key_range(row_start, row_stop, n),
            self.b.key_range(row_start, row_stop, n),
        )
        return max(a_start, b_start), max(min(a_stop, b_stop), max(a_start, b_start))

    @property
    def pair_mask(self) -> PairMask | None:
        mask_a, mask_b = self.a.pair_mask, self.b.pair_mask
        return None if mask_a is None or mask_b is None else lambda b, h, i, j: mask_a(b, h, i, j) & mask_b(b, h, i, j)

    @property
    def is_per_head(self) -> bool:
        return self.a.is_per_head or self.b.is_per_head

    def select_heads(self, heads: list[int]) -> "Intersection":
        return replace(self, a=self.a.select_heads(heads), b=self.b.select_heads(heads))


def _check_table_shape(name: str, table: Tensor, shapes: list[tuple[int, ...]]) -> None:
    if tuple(table.shape) not in shapes:
        expected = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
        raise RheoscopeError(
            Message(
                "{name} for these q and k must have shape {expected}, got {received}",
                name=name,
                expected=expected,
                received=str(tuple(table.shape)),
            )
        )


NAMED_MASKS: dict[str, Mask] = {"none": NoMask(), "causal": Causal()}


def as_mask(mask: "Mask | str | Tensor | None") -> Mask:
    """A mask from a user's argument: None, "none", "causal", a boolean tensor (True allows) or a Mask.

    >>> as_mask("causal")
    Causal()
    >>> as_mask("casual")
    Traceback (most recent call last):
    rheoscope.shapes.RheoscopeError: mask must be 'none', 'causal', a boolean tensor or a Mask, got 'casual'; type mask='causal'
    """
    if mask is None:
        return NoMask()
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, str) and mask in NAMED_MASKS:
        return NAMED_MASKS[mask]
    if isinstance(mask, Tensor):
        if mask.dtype is not torch.bool or mask.ndim not in (2, 3, 4):
            raise RheoscopeError(
                Message(
                    "a mask tensor must be boolean of shape (m, n), (b, m, n) or (b, h, m, n), got {dtype} of shape {shape}; "
                    "pass a float bias as a position",
                    dtype=str(mask.dtype),
                    shape=str(tuple(mask.shape)),
                ),
                Advice("replace(mechanism, position=Bias(tensor))"),
            )
        return BooleanMask(mask)
    raise RheoscopeError(
        Message(
            "mask must be 'none', 'causal', a boolean tensor or a Mask, got {received}",
            received=repr(mask) if isinstance(mask, str) else type(mask).__name__,
        ),
        Advice("mask='causal'"),
    )
