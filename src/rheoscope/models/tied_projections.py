"""Projections with W_Q = W_K, and those whose keys follow from their queries: symmetric forms M with a skew part of chosen rank."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from rheoscope.attention.position import RotaryMap
from rheoscope.messages.message import Message
from rheoscope.models.config import Config, set_fields
from rheoscope.models.projection import (
    Cloud,
    Keys,
    Projection,
    Queries,
    broadcast_to_texts,
)
from rheoscope.shapes import RheoscopeError


class Tied(Projection):
    """W_Q = W_K: every token has one vector per head, and M(δ) = W R(δ) Wᵀ (Reformer's shared QK, arXiv:2001.04451).

    **Laws** s(δ) = 1 at every offset and every training step. M(0) is positive semi-definite.
    """

    query_key_rows: tuple[str, ...] = ("k",)

    def check(self, config: Config) -> None:
        if config.kv_heads != config.heads:
            raise RheoscopeError(
                Message(
                    "projection={projection} uses queries as keys and needs one key head per head, "
                    "got heads={heads} and kv_heads={kv_heads}",
                    projection=config.projection,
                    heads=config.heads,
                    kv_heads=config.kv_heads,
                ),
                set_fields(kv_heads=config.heads),
            )

    def queries_keys(self, heads: dict[str, Tensor], u: Cloud) -> tuple[Queries, Keys]:
        return heads["k"], self.key_from_query(heads["k"])

    def key_from_query(self, q: Queries) -> Keys:
        """The key of a token, computed from its query. It commutes with every rotation of positions."""
        return q

    def apply_positions(self, q: Queries, k: Keys, rotation: RotaryMap | None) -> tuple[Queries, Keys]:
        if rotation is None:
            return q, k
        rotated = rotation(q)
        return rotated, self.key_from_query(rotated)


class TiedPositional(Tied):
    """Tied, with a learned vector added to queries and one to keys: s_ij = (x_i + a) R(i−j) (x_j + b)ᵀ.

    M stays W R(δ) Wᵀ, so content is compared symmetrically. a R(δ) bᵀ is a bias of the offset, and a R(δ) x_jᵀ a bias of offset and
    key. Without rotations, a and b would carry no position, so that is an error. Training starts from tied weights. Borji's KV + Pos
    (arXiv:2305.19129) adds a position table to tied scores. This projection is the same as a Fourier series of the offset, and fused
    kernels support it.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.of_queries = nn.Parameter(torch.zeros(config.heads * config.head_width))
        self.of_keys = nn.Parameter(torch.zeros(config.heads * config.head_width))

    def check(self, config: Config) -> None:
        super().check(config)
        if config.position != "rotary":
            raise RheoscopeError(
                Message(
                    "projection=tied_positional needs rotary positions, got position={position}",
                    position=config.position,
                ),
                set_fields(position="rotary"),
            )

    def offsets(self) -> tuple[Tensor, Tensor]:
        return tuple(x.unflatten(-1, (-1, self.width)) for x in (self.of_queries, self.of_keys))

    def apply_positions(self, q: Queries, k: Keys, rotation: RotaryMap | None) -> tuple[Queries, Keys]:
        a, b = (broadcast_to_texts(x, len(q)).to(q.dtype) for x in self.offsets())
        return (q + a, k + b) if rotation is None else (rotation(q + a), rotation(k + b))


class PsdSkew(Tied):
    """M = B Bᵀ + U J Uᵀ: a positive semi-definite symmetric part and a skew part of low rank, by construction.

    Queries are [uB, uU] and keys [uB, uUJᵀ]. J is a quarter turn inside pairs of coordinates. Rotary positions rotate the same
    pairs and therefore commute with J: M(δ) = B R(δ) Bᵀ + U R(δ) J Uᵀ. A quarter of the pairs is skew. The number of parameters
    equals that of `tied`.

    **Laws** ½(M + Mᵀ) = B Bᵀ. ½(M − Mᵀ) = U J Uᵀ has rank `skew_rank` (for generic W).
    """

    def check(self, config: Config) -> None:
        super().check(config)
        if config.head_width % 2 or config.head_width < 4:
            raise RheoscopeError(
                Message(
                    "projection={projection} needs an even head_width of at least 4, got {head_width}",
                    projection=config.projection,
                    head_width=config.head_width,
                ),
                set_fields(head_width=max(4, config.head_width + config.head_width % 2)),
            )

    @property
    def skew_rank(self) -> int:
        """The rank of M − Mᵀ."""
        return 2 * max(1, self.width // 2 // PAIRS_PER_SKEW_PAIR)

    def key_signs(self, n_texts: int) -> Float[Tensor, "#b h 1 p"] | None:
        """The factors of the symmetric coordinates of keys, or None."""
        return None

    def key_from_query(self, q: Queries) -> Keys:
        n_symmetric = (self.width - self.skew_rank) // 2
        (a, c), (b, d) = (half.split((n_symmetric, self.skew_rank // 2), -1) for half in q.chunk(2, -1))
        signs = self.key_signs(len(q))
        a, b = (a, b) if signs is None else (a * signs.to(a.dtype), b * signs.to(b.dtype))
        return torch.cat([a, -d, b, c], -1)


class SymmetricSkew(PsdSkew):
    """M = W D Wᵀ + U J Uᵀ: any symmetric part, with a learned diagonal D of either sign, and a skew part of low rank.

    The skew part (routing) and the symmetric part (filtering) are separate by construction, as in S-D attention (arXiv:2605.18826).
    There D keeps one sign, here it is free. Half of D starts at −1, because half of the eigenvalues of ½(M + Mᵀ) are negative in an
    untied head.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        n_pairs = (self.width - self.skew_rank) // 2
        signs = torch.ones(config.heads, n_pairs)
        signs[:, 1::2] = -1
        self.signs = nn.Parameter(signs.flatten())

    def key_signs(self, n_texts: int) -> Float[Tensor, "#b h 1 p"]:
        return broadcast_to_texts(self.signs.unflatten(-1, (self.n_heads, -1)), n_texts)


class SkewPlanes(Tied):
    """M = W (D + S) Wᵀ: symmetric and of full rank, plus a skew part whose rank 2r is a dial.

    Coordinates come in pairs (planes), and rotary positions rotate the same pairs. A key is its query with every plane p multiplied by
    a learned complex number a_p + i b_p. b is 0 except in the last r planes, so M(δ) = Σ_p W_p R(δ) (a_p I + b_p J) W_pᵀ. The number of
    parameters is that of `tied`, up to k/2 + r numbers per head. Half of the planes start with a negative a. Every factor starts with
    length 1, and those with a b at 45 degrees.

    **Laws** M − Mᵀ has rank 2r (for generic W) and is 0 for r = 0. M + Mᵀ does not depend on b. Both hold at every offset:
    M(δ) − M(−δ)ᵀ has rank 2r.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        n_planes, n_skew = self.width // 2, config.skew_planes
        lengths = torch.ones(self.n_heads, n_planes)
        lengths[:, 1::2] = -1
        lengths[:, n_planes - n_skew :] *= 0.5**0.5
        self.signs = nn.Parameter(lengths.flatten())
        self.turns = nn.Parameter(torch.full((self.n_heads * n_skew,), 0.5**0.5)) if n_skew else None

    def check(self, config: Config) -> None:
        super().check(config)
        if config.head_width % 2 or config.skew_planes > config.head_width // 2:
            raise RheoscopeError(
                Message(
                    "projection=skew_planes needs an even head_width and at most half of it as skew_planes, "
                    "got head_width={head_width} and skew_planes={skew_planes}",
                    head_width=config.head_width,
                    skew_planes=config.skew_planes,
                ),
                set_fields(skew_planes=config.head_width // 2),
            )

    def key_from_query(self, q: Queries) -> Keys:
        a = broadcast_to_texts(self.signs.unflatten(-1, (self.n_heads, -1)), len(q)).to(q.dtype)
        x, y = q.chunk(2, -1)
        if self.turns is None:
            return torch.cat([a * x, a * y], -1)
        turns = broadcast_to_texts(self.turns.unflatten(-1, (self.n_heads, -1)), len(q)).to(q.dtype)
        b = pad(turns, (a.shape[-1] - turns.shape[-1], 0))
        return torch.cat([a * x - b * y, a * y + b * x], -1)


PAIRS_PER_SKEW_PAIR = 4
"""One pair of coordinates in this many is skew."""
