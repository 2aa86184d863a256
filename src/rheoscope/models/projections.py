"""Projections: how a layer computes queries and keys from its tokens. `PROJECTIONS` lists them.

    untied               q = uW_Q, k = uW_K
    tied                 W_Q = W_K: tokens are compared in one coordinate system, M(δ) = W R(δ) Wᵀ
    tied_positional      tied, with q + a and k + b: content is compared symmetrically, offsets are not
    symmetric_skew       M = W D Wᵀ + U J Uᵀ: any symmetric part and a skew part of low rank
    psd_skew             M = B Bᵀ + U J Uᵀ: the symmetric part is positive semi-definite
    skew_planes          M = W (D + S) Wᵀ: a symmetric part of full rank and a skew part of rank 2r on the same coordinates
    isometric            W_QᵀW_Q = W_KᵀW_K = I for every head
    isometric_tied       W_Q = W_K = W with WᵀW = I for every head: one preserved coordinate system
    identity             q = k: a slice of the token's coordinates, nothing is learned
    bandwidth            identity, times a learned number for each head
    identity_queries     W_Q = I: the queries of a head are a slice of the token's coordinates
    nonlinear_queries    q = u + f(u) with a small network f, keys are free
    gated                untied, and the output of a head is multiplied by σ(u w_h)
    full                 q = uM, k = v = u: M and F are matrices on E, without factors

Two more fields of the config combine with every projection. `values` is free (v = uW_V), isometric (W_VᵀW_V = I for every head)
or shared (v = k, arXiv:2606.04032; positions rotate the key, not the value). `diagonal=False` lets only the first token attend to
itself. A layer has one linear map, `read`. A projection names its rows in `layout`, and its other parameters are flat vectors.
Weights may have a leading dimension for models that are trained together: (out, in) or (models, out, in), with the texts of all
models stacked. Other kinds of scores (a Gaussian metric, a map φ, cosines) are mechanisms of the zoo, not projections.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from rheoscope.attention.lower.sdpa import ALIGNMENT_BYTES
from rheoscope.attention.position import RotaryMap
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.models.config import Config, set_fields
from rheoscope.models.linear_maps import Linear
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
from rheoscope.models.tied_projections import PsdSkew, SkewPlanes, SymmetricSkew, Tied, TiedPositional
from rheoscope.shapes import RheoscopeError


class Untied(Projection):
    """q = uW_Q, k = uW_K, v = uW_V, one matrix each, computed together (arXiv:1706.03762)."""

    def project_heads(self, rows: Rows, u: Cloud, rotation: RotaryMap | None = None) -> Projected:
        if rotation is None:  # splitting before the heads are separated keeps the gradient contiguous
            return self.split(rows, u)
        (q, width), (k, _) = self.layout["q"], self.layout["k"]
        qk_rows, *value_rows = rows.split([(q + k) * width, *row_counts(self.layout)[2:]], dim=-1)
        heads = separate_projections(qk_rows, width)
        q_heads, k_heads = rotation(heads).split((q, k), dim=1)  # one call for q and k
        values = separate_projections(value_rows[0], self.layout["v"][1]) if "v" in self.layout else heads[:, q:]
        return q_heads, k_heads, values


class Isometric(Untied):
    """W_QᵀW_Q = W_KᵀW_K = I for every head: queries and keys preserve lengths and angles inside a subspace.

    The gain of the norm remains free to scale the scores. `Projection.weight` describes how the weights stay orthonormal.
    """

    isometric_rows = frozenset({"q", "k"})


class IsometricTied(Tied):
    """W_Q = W_K = W with WᵀW = I for every head: one preserved coordinate system per head.

    Queries and keys are the same isometric image of the token: M(δ) = W R(δ) Wᵀ, and M(0) = W Wᵀ is the orthogonal projection onto a
    subspace of dimension k. Heads differ by their subspace. Lengths and angles inside it are those of the normalised token.

    **Laws** s(δ) = 1 at every offset, all non-zero eigenvalues of M(0) are 1 (before scale and gain), and both hold after every step of
    any optimiser.
    """

    isometric_rows = frozenset({"k"})


class Identity(Tied):
    """q = k = the token's own coordinates: head h compares the coordinates h·k … (h+1)·k − 1 of its input. Nothing is learned.

    With P_h (d, k) the selection of these coordinates, M_h(δ) = C D_g P_h R(δ) P_hᵀ D_g C · scale, and ⊕_h P_h P_hᵀ = I: every
    coordinate of the token belongs to exactly one head. Heads differ only by their slice, so a model learns which coordinates a head
    compares by writing to them. The gain of the norm remains free.

    **Laws** s(δ) = 1 at every offset. The concatenated queries of all heads are the token itself.
    """

    query_key_rows = ()

    def check(self, config: Config) -> None:
        super().check(config)
        check_slices(config)

    def queries_keys(self, heads: dict[str, Tensor], u: Cloud) -> tuple[Queries, Keys]:
        slices = separate_projections(u, self.width)
        return slices, slices


class Bandwidth(Identity):
    """q = k = c_h times a slice of the token's coordinates, with one learned number c_h > 0 for each head.

    With a Gaussian metric and values=shared, this is Gaussian Kernel Attention (arXiv:2605.02144): no W_Q, W_K and W_V, and a
    learned bandwidth σ / c_h. The output projection absorbs the factor of the values.

    **Laws** s(δ) = 1 at every offset. M_h is c_h² times that of `identity`, which is the start of the training.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.log_scale = nn.Parameter(torch.zeros(config.heads))

    def check(self, config: Config) -> None:
        super().check(config)
        if config.mechanism == "cosine":
            raise RheoscopeError(
                Message("projection=bandwidth has no effect on cosines, which ignore lengths"),
                set_fields(projection="identity"),
            )

    def queries_keys(self, heads: dict[str, Tensor], u: Cloud) -> tuple[Queries, Keys]:
        scale = broadcast_to_texts(self.log_scale.exp().unflatten(-1, (-1, 1)), len(u)).to(u.dtype)
        slices = scale * separate_projections(u, self.width)
        return slices, slices


class IdentityQueries(Projection):
    """W_Q = I: head h queries with coordinates h·k … (h+1)·k − 1 of its input (arXiv:2510.23912). A quarter fewer parameters."""

    query_key_rows = ("k",)

    def check(self, config: Config) -> None:
        check_slices(config)

    def queries_keys(self, heads: dict[str, Tensor], u: Cloud) -> tuple[Queries, Keys]:
        return separate_projections(u, self.width), heads["k"]


class NonlinearQueries(IdentityQueries):
    """q = u + f(u), a slice of it for each head, with f(u) = GELU(u W_1) W_2 through half the width (arXiv:2603.13381).

    It has as many parameters as untied queries. f starts small, so training starts near `identity_queries`. Queries are not linear in
    the tokens: heads have no M, and a View is refused.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        with torch.random.fork_rng(
            devices=[]
        ):  # the draws of W_Q, so that everything else is the same for a given seed
            self.narrow = Linear(config.width, config.width // 2, bias=False)
            self.widen = Linear(config.width // 2, config.width, bias=False)

    def queries_keys(self, heads: dict[str, Tensor], u: Cloud) -> tuple[Queries, Keys]:
        q = u + self.widen(nn.functional.gelu(self.narrow(u), approximate="tanh"))
        return separate_projections(q, self.width), heads["k"]

    def maps(self, W: Weight) -> Projected:
        raise RheoscopeError(
            Message(
                "projection=nonlinear_queries has queries that are not linear in the tokens, so its heads have no M"
            ),
            Advice('projection="identity_queries"', "projection=identity_queries"),
        )


def check_slices(config: Config) -> None:
    """Raise if the heads do not divide the coordinates of a token among them."""
    if config.heads * config.head_width != config.width:
        raise RheoscopeError(
            Message(
                "projection={projection} divides the {width} coordinates of a token among {heads} heads, "
                "got head_width={head_width}",
                projection=config.projection,
                width=config.width,
                heads=config.heads,
                head_width=config.head_width,
            ),
            set_fields(head_width=config.width // config.heads),
        )


class Gated(Untied):
    """Untied, with the output of head h at token i multiplied by σ(u_i w_h), one number per head and token.

    This is the head-wise gate after attention of arXiv:2505.06708. Gates start at ½.
    """

    extra_rows = ("gate",)

    def read_rows(self, read: nn.Module, u: Cloud) -> Rows:
        """The rows, padded with zeros after the gates to the alignment that GPU kernels need. Otherwise they would be copied."""
        linear_module: Any = read
        W, b, n_padding = self.weight(linear_module.weight), linear_module.bias, -self.n_rows % ROW_ALIGNMENT
        if not n_padding:
            return linear(u, W, b)
        return linear(u, pad(W, (0, 0, 0, n_padding)), None if b is None else pad(b, (0, n_padding)))

    @property
    def n_rows(self) -> int:
        """The number of rows without padding."""
        return sum(row_counts(self.layout))

    def split(self, rows: Rows, u: Cloud) -> Projected:
        return super().split(rows[..., : self.n_rows], u)

    def project_heads(self, rows: Rows, u: Cloud, rotation: RotaryMap | None = None) -> Projected:
        return super().project_heads(rows[..., : self.n_rows], u, rotation)

    def gate(self, rows: Rows) -> Float[Tensor, "b h n 1"]:
        n_before = self.n_rows - self.n_heads
        return rows[..., n_before : self.n_rows].sigmoid().mT[..., None]


class Full(Projection):
    """q = uM_h, k = v = u: one form M_h and, as the output map, one operator F_h on E per head, both of shape d x d.

    This is the EMF model of *The Flow of Attention*. M and F have no factors, so no head width bounds their rank. All heads share
    the tokens themselves as keys and values.

    **Laws** M and F of the View equal the trained parameters bit for bit if the mechanism has scale 1 and there is no norm.
    """

    query_key_rows = ("q",)

    def value_rows(self, config: Config) -> tuple[str, ...]:
        return ()

    def check(self, config: Config) -> None:
        if config.values != "free":
            raise RheoscopeError(
                Message("projection=full uses tokens as values, got values={values}", values=config.values),
                set_fields(values="free"),
            )
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

WITHOUT_M = ("nonlinear_queries",)
"""Projections whose queries are not linear in the tokens. Their models have no View."""

PROJECTIONS: dict[str, Callable[[Config], Projection]] = {
    "untied": Untied,
    "tied": Tied,
    "tied_positional": TiedPositional,
    "symmetric_skew": SymmetricSkew,
    "psd_skew": PsdSkew,
    "skew_planes": SkewPlanes,
    "isometric": Isometric,
    "isometric_tied": IsometricTied,
    "identity": Identity,
    "bandwidth": Bandwidth,
    "identity_queries": IdentityQueries,
    "nonlinear_queries": NonlinearQueries,
    "gated": Gated,
    "full": Full,
}
"""The class for each `projection` of a config."""
