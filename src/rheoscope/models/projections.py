"""Projections: how a layer computes queries, keys and values from its tokens. `PROJECTIONS` lists them.

    untied               q = uW_Q, k = uW_K, v = uW_V
    untied_no_diagonal   untied, and only the first token may attend to itself
    tied                 W_Q = W_K: tokens are compared in one coordinate system, M(δ) = W R(δ) Wᵀ
    tied_no_diagonal     tied, and only the first token may attend to itself
    tied_positional      tied, with q + a and k + b: content is compared symmetrically, offsets are not
    symmetric_skew       M = W D Wᵀ + U J Uᵀ: any symmetric part and a skew part of low rank
    psd_skew             M = B Bᵀ + U J Uᵀ: the symmetric part is positive semi-definite
    isometric            W_QᵀW_Q = W_KᵀW_K = I for every head
    identity_queries     W_Q = I: the queries of a head are a slice of the token's coordinates
    shared_kv            W_K = W_V
    gated                untied, and the output of a head is multiplied by σ(u w_h)
    full                 q = uM, k = v = u: M and F are matrices on E, without factors

A layer has one linear map, `read`. A projection names its rows in `layout`, and its other parameters are flat vectors. Weights
may have a leading dimension for models that are trained together: (out, in) or (models, out, in), with the texts of all models
stacked. Other kinds of scores (a Gaussian metric, a map φ, cosines) are mechanisms of the zoo, not projections.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from rheoscope.attention.lower.sdpa import ALIGNMENT_BYTES
from rheoscope.attention.mask import ExcludeSelf
from rheoscope.attention.position import RotaryMap
from rheoscope.messages.message import Message
from rheoscope.models.config import Config, set_fields
from rheoscope.models.orthonormal_rows import orthonormal_rows
from rheoscope.models.projection import (
    Cloud,
    Keys,
    Projected,
    Projection,
    Queries,
    Rows,
    Weight,
    broadcast_to_texts,
    linear,
    row_counts,
    separate_projections,
)
from rheoscope.shapes import RheoscopeError


class Untied(Projection):
    """q = uW_Q, k = uW_K, v = uW_V, one matrix each, computed together (arXiv:1706.03762)."""

    def project_heads(self, rows: Rows, u: Cloud, rotation: RotaryMap | None = None) -> Projected:
        if rotation is None:  # splitting before the heads are separated keeps the gradient contiguous
            return self.split(rows, u)
        q, k, v = row_counts(self.full_layout)
        qk_rows, v_rows = rows.split((q + k, v), dim=-1)
        qk_heads = rotation(separate_projections(qk_rows, self.width))  # one call for q and k
        q_heads, k_heads = qk_heads.split((self.layout["q"][0], self.layout["k"][0]), dim=1)
        return q_heads, k_heads, separate_projections(v_rows, self.layout["v"][1])


class UntiedNoDiagonal(Untied):
    """Untied, and only the first token may attend to itself: `tied_no_diagonal` without tying."""

    mask = ExcludeSelf()


class Tied(Projection):
    """W_Q = W_K: every token has one vector per head, and M(δ) = W R(δ) Wᵀ (Reformer's shared QK, arXiv:2001.04451).

    **Laws** s(δ) = 1 at every offset and every training step. M(0) is positive semi-definite.
    """

    row_names = ("k", "v")

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

    def split(self, rows: Rows, u: Cloud) -> Projected:
        q, v = rows.split(row_counts(self.layout), dim=-1)
        q = separate_projections(q, self.width)
        return q, self.key_from_query(q), separate_projections(v, self.layout["v"][1])

    def key_from_query(self, q: Queries) -> Keys:
        """The key of a token, computed from its query. It commutes with every rotation of positions."""
        return q

    def apply_positions(self, q: Queries, k: Keys, rotation: RotaryMap | None) -> tuple[Queries, Keys]:
        if rotation is None:
            return q, k
        rotated = rotation(q)
        return rotated, self.key_from_query(rotated)


class TiedNoDiagonal(Tied):
    """Tied, and a token does not attend to itself, because its own key would be by far the closest.

    The first token, which has nothing else to attend to in a decoder, attends to itself, as in Reformer. This also holds in an encoder.
    """

    mask = ExcludeSelf()


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


class Isometric(Projection):
    """W_QᵀW_Q = W_KᵀW_K = I for every head: queries and keys preserve lengths and angles inside a subspace.

    Every forward pass makes the weights orthonormal by Cholesky QR: W = V L⁻ᵀ with VᵀV = LLᵀ. This takes one k×k factorisation per
    head. It is exact, batched and differentiable once. A Newton–Schulz iteration would need ten products for the same accuracy, and a
    Householder QR works on d×k. The length of V has no effect, so weight decay changes only the pace. The gain of the norm remains
    free to scale the scores.
    """

    def weight(self, W: Weight) -> Weight:
        q, k, v = row_counts(self.layout)
        qk_weight, v_weight = W.split((q + k, v), dim=-2)
        return torch.cat([orthonormal_rows(qk_weight.unflatten(-2, (-1, self.width))).flatten(-3, -2), v_weight], -2)

    def read_rows(self, read: nn.Module, u: Cloud) -> Rows:
        linear_module: Any = read
        return linear(u, self.weight(linear_module.weight), linear_module.bias)


class IdentityQueries(Projection):
    """W_Q = I: head h queries with coordinates h·k … (h+1)·k of its input (arXiv:2510.23912). A quarter fewer parameters."""

    row_names = ("k", "v")

    def check(self, config: Config) -> None:
        if config.heads * config.head_width != config.width:
            raise RheoscopeError(
                Message(
                    "projection=identity_queries divides the {width} coordinates of a token among {heads} heads, "
                    "got head_width={head_width}",
                    width=config.width,
                    heads=config.heads,
                    head_width=config.head_width,
                ),
                set_fields(head_width=config.width // config.heads),
            )

    def split(self, rows: Rows, u: Cloud) -> Projected:
        k, v = rows.split(row_counts(self.layout), dim=-1)
        return (
            separate_projections(u.to(rows.dtype), self.width),
            separate_projections(k, self.width),
            separate_projections(v, self.layout["v"][1]),
        )


class SharedKV(Projection):
    """W_K = W_V: the key of a token is also its value (arXiv:2606.04032). Positions rotate the key, not the value."""

    row_names = ("q", "k")

    def check(self, config: Config) -> None:
        if config.value_width != config.head_width:
            raise RheoscopeError(
                Message(
                    "projection=shared_kv uses keys as values, got value_width={value_width} and head_width={head_width}",
                    value_width=config.value_width,
                    head_width=config.head_width,
                ),
                set_fields(value_width=config.head_width),
            )

    def split(self, rows: Rows, u: Cloud) -> Projected:
        q, k = (separate_projections(part, self.width) for part in rows.split(row_counts(self.layout), dim=-1))
        return q, k, k


class Gated(Untied):
    """Untied, with the output of head h at token i multiplied by σ(u_i w_h), one number per head and token.

    This is the head-wise gate after attention of arXiv:2505.06708. Gates start at ½.
    """

    row_names = ("q", "k", "v", "gate")

    def read_rows(self, read: nn.Module, u: Cloud) -> Rows:
        """The rows, padded with zeros after the gates to the alignment that GPU kernels need. Otherwise they would be copied."""
        linear_module: Any = read
        W, b, n_padding = linear_module.weight, linear_module.bias, -sum(row_counts(self.layout)) % ROW_ALIGNMENT
        if not n_padding:
            return read(u)
        return linear(u, pad(W, (0, 0, 0, n_padding)), None if b is None else pad(b, (0, n_padding)))

    def split(self, rows: Rows, u: Cloud) -> Projected:
        return super().split(rows[..., : sum(row_counts(self.full_layout))], u)

    def project_heads(self, rows: Rows, u: Cloud, rotation: RotaryMap | None = None) -> Projected:
        return super().project_heads(rows[..., : sum(row_counts(self.full_layout))], u, rotation)

    def gate(self, rows: Rows) -> Float[Tensor, "b h n 1"]:
        return rows[..., sum(row_counts(self.full_layout)) :][..., : self.n_heads].sigmoid().mT[..., None]


class Full(Projection):
    """q = uM_h, k = v = u: one form M_h and, as the output map, one operator F_h on E per head, both of shape d x d.

    This is the EMF model of *The Flow of Attention*. M and F have no factors, so no head width bounds their rank. All heads share
    the tokens themselves as keys and values.

    **Laws** M and F of the View equal the trained parameters bit for bit if the mechanism has scale 1 and there is no norm.
    """

    row_names = ("q",)

    def check(self, config: Config) -> None:
        if (config.kv_heads, config.head_width, config.value_width) != (1, config.width, config.width):
            raise RheoscopeError(
                Message(
                    "projection=full uses the {width} coordinates of a token as its key and value, "
                    "got kv_heads={kv_heads}, head_width={head_width} and value_width={value_width}",
                    width=config.width,
                    kv_heads=config.kv_heads,
                    head_width=config.head_width,
                    value_width=config.value_width,
                ),
                set_fields(kv_heads=1, head_width=config.width, value_width=config.width),
            )

    def split(self, rows: Rows, u: Cloud) -> Projected:
        tokens = u.to(rows.dtype)[:, None]
        return separate_projections(rows, self.width), tokens, tokens


ROW_ALIGNMENT = ALIGNMENT_BYTES // 2
"""Half-precision numbers that a GPU loads at once."""

PAIRS_PER_SKEW_PAIR = 4
"""One pair of coordinates in this many is skew."""

PROJECTIONS: dict[str, Callable[[Config], Projection]] = {
    "untied": Untied,
    "untied_no_diagonal": UntiedNoDiagonal,
    "tied": Tied,
    "tied_no_diagonal": TiedNoDiagonal,
    "tied_positional": TiedPositional,
    "symmetric_skew": SymmetricSkew,
    "psd_skew": PsdSkew,
    "isometric": Isometric,
    "identity_queries": IdentityQueries,
    "shared_kv": SharedKV,
    "gated": Gated,
    "full": Full,
}
"""The class for each `projection` of a config."""
