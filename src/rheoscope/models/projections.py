"""How queries, keys and values of a layer come from its tokens: one small part for each way, `PROJECTIONS` lists them.

    untied               q = uW_Q, k = uW_K, v = uW_V
    untied_no_diagonal   the same, and no token but the first sees itself
    tied                 W_Q = W_K: tokens are compared in one coordinate system, M(δ) = W R(δ) Wᵀ
    tied_no_diagonal     the same, and no token but the first sees itself
    tied_positional      the same, with q + a and k + b: content is compared symmetrically, offsets are not
    symmetric_skew       M = W D Wᵀ + U J Uᵀ: any symmetric part, and a skew one of low rank
    psd_skew             M = B Bᵀ + U J Uᵀ: the symmetric part is positive semi-definite
    isometric            W_QᵀW_Q = W_KᵀW_K = I for every head
    identity_queries     W_Q = I: a head's queries are its share of the token's own coordinates
    shared_kv            W_K = W_V
    gated                untied, and what a head takes is multiplied by σ(u w_h)

A layer has one linear map, `read`, whose rows a part names in its `layout`; what a part learns besides are flat vectors. Everything
here takes weights with leading dimensions too, so that several models can be trained as one: (out, in) or (models, out, in),
with the texts of all models one after the other. Scores of other kinds (a Gaussian metric, a map φ, cosines) are rows of the
zoo: `mechanism`, not `projection`.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from rheoscope.attention.lower.sdpa import ALIGNMENT_BYTES
from rheoscope.attention.mask import ExcludeSelf, Mask, NoMask
from rheoscope.attention.position import RotaryMap
from rheoscope.models.config import Config
from rheoscope.shapes import RheoscopeError

Cloud = Float[Tensor, "b n d"]
Rows = Float[Tensor, "b n rows"]
Weight = Float[Tensor, "*models rows d"]
Queries = Float[Tensor, "b h n k"]
Keys = Float[Tensor, "b g n k"]
Values = Float[Tensor, "b g n e"]
Projected = tuple[Queries, Keys, Values]
Factors = list[tuple[Tensor, Tensor | None]]
"""Weights (g, d, k) and biases (g, k) of queries, of keys and of values."""


class Projection(nn.Module):
    """How q, k and v come from the rows that a layer reads. A new part says its `names`, its `split`, and how positions act.

    **Laws** `factors` are what `heads` does, as operators: the View's M and F reproduce the scores and displacements of the module;
    gradients reach every parameter; every part takes the same numbers from a seed, so that what two parts share starts the same.
    """

    row_names: tuple[str, ...] = ("q", "k", "v")
    """The rows that are read, in order: `q`, `k`, `v`, `gate`."""
    mask: Mask = NoMask()
    """What it forbids besides the model's own mask."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.n_heads, self.width = config.heads, config.head_width
        all_shapes = {
            "q": (config.heads, config.head_width),
            "k": (config.kv_heads, config.head_width),
            "v": (config.kv_heads, config.value_width),
            "gate": (config.heads, 1),
        }
        self.layout = {name: all_shapes[name] for name in self.row_names}
        self.full_layout = {name: all_shapes[name] for name in ("q", "k", "v")}
        self.check(config)

    def check(self, config: Config) -> None:
        """Refuse a model that this part does not fit."""

    def select_rows(self, read: nn.Linear) -> None:
        """Leave of a linear map with the rows of `untied` the rows of this part; rows of a gate are added, at zero."""
        if self.layout == self.full_layout:
            return
        for name in ("weight", "bias"):
            if (parameter := getattr(read, name)) is not None:
                rows = dict(zip(self.full_layout, parameter.data.split(row_counts(self.full_layout)), strict=True))
                gate_rows = parameter.data.new_zeros(self.n_heads, *parameter.shape[1:])
                parameter.data = torch.cat([rows.get(row_name, gate_rows) for row_name in self.layout])
        read.out_features = len(read.weight)

    def read_rows(self, read: nn.Module, u: Cloud) -> Rows:
        """All that the layer reads of its tokens."""
        return read(u)

    def weight(self, W: Weight) -> Weight:
        """The weights that tokens are multiplied by, from those that are trained."""
        return W

    def split(self, rows: Rows, u: Cloud) -> Projected:
        """q, k and v, linear in tokens and before positions."""
        q, k, v = rows.split(row_counts(self.full_layout), dim=-1)
        return tuple(
            separate_projections(part, width)
            for part, (_, width) in zip((q, k, v), self.full_layout.values(), strict=True)
        )  # type: ignore[return-value]

    def apply_positions(self, q: Queries, k: Keys, rotation: RotaryMap | None) -> tuple[Queries, Keys]:
        """q and k at their positions."""
        return (q, k) if rotation is None else (rotation(q), rotation(k))

    def project_heads(self, rows: Rows, u: Cloud, rotation: RotaryMap | None = None) -> Projected:
        """q, k and v, turned by their positions where there is a turn."""
        q, k, v = self.split(rows, u)
        return *self.apply_positions(q, k, rotation), v

    def gate(self, rows: Rows) -> Float[Tensor, "b h n 1"] | None:
        """What the outputs of heads are multiplied by, if by anything."""
        return None

    def offsets(self) -> tuple[Tensor, Tensor] | None:
        """What is added to queries and to keys of every head (h, k), whatever the token, if anything."""
        return None

    def maps(self, W: Weight) -> Projected:
        """W_Q, W_K and W_V (models, h, d, k) of the trained weights: what is done to the axes."""
        W = self.weight(W if W.ndim == 3 else W[None])
        axes = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
        return self.split(W.mT, axes.expand(len(W), -1, -1))

    def factors(self, read: nn.Linear) -> Factors:
        """W and b of queries, keys and values: what `heads` does to the axes, and to nothing."""
        weights = [part[0] for part in self.maps(read.weight)]
        biases: list[Tensor | None] = [None, None, None]
        if read.bias is not None:
            zeros = read.weight.new_zeros(1, 1, read.weight.shape[-1])
            biases = [part[0, :, 0] for part in self.split(read.bias[None, None], zeros)]
        for side, offset in enumerate(self.offsets() or ()):
            bias = biases[side]
            biases[side] = offset if bias is None else bias + offset
        return list(zip(weights, biases, strict=True))


class Untied(Projection):
    """q = uW_Q, k = uW_K, v = uW_V, one matrix each, read together (arXiv:1706.03762)."""

    def project_heads(self, rows: Rows, u: Cloud, rotation: RotaryMap | None = None) -> Projected:
        if rotation is None:  # split before heads are told apart: the gradient is put together in one piece
            return self.split(rows, u)
        q, k, v = row_counts(self.full_layout)
        qk_rows, v_rows = rows.split((q + k, v), dim=-1)
        qk_heads = rotation(separate_projections(qk_rows, self.width))  # q and k in one call
        q_heads, k_heads = qk_heads.split((self.layout["q"][0], self.layout["k"][0]), dim=1)
        return q_heads, k_heads, separate_projections(v_rows, self.layout["v"][1])


class UntiedNoDiagonal(Untied):
    """Untied, and a token does not see itself, but for the first one: what `tied_no_diagonal` is without tying."""

    mask = ExcludeSelf()


class Tied(Projection):
    """W_Q = W_K: every token has one place, and M(δ) = W R(δ) Wᵀ (Reformer's shared QK, arXiv:2001.04451).

    **Laws** s(δ) = 1 at every offset and at every step of training; M(0) is positive semi-definite.
    """

    row_names = ("k", "v")

    def check(self, config: Config) -> None:
        if config.kv_heads != config.heads:
            raise RheoscopeError(
                f"projection={config.projection} has queries that are keys: one key head for each of {config.heads} heads, got "
                f"kv_heads={config.kv_heads}; type kv_heads={config.heads}"
            )

    def split(self, rows: Rows, u: Cloud) -> Projected:
        q, v = rows.split(row_counts(self.layout), dim=-1)
        q = separate_projections(q, self.width)
        return q, self.key_from_query(q), separate_projections(v, self.layout["v"][1])

    def key_from_query(self, q: Queries) -> Keys:
        """The key of a token, from its query; it commutes with every rotation of positions."""
        return q

    def apply_positions(self, q: Queries, k: Keys, rotation: RotaryMap | None) -> tuple[Queries, Keys]:
        if rotation is None:
            return q, k
        rotated = rotation(q)
        return rotated, self.key_from_query(rotated)


class TiedNoDiagonal(Tied):
    """Tied, and a token does not see itself: its own key would be the closest one by far. The first token, which in a decoder has no
    other to see, sees itself (as in Reformer); in an encoder too."""

    mask = ExcludeSelf()


class TiedPositional(Tied):
    """Tied, with a learned vector added to queries and one to keys: s_ij = (x_i + a) R(i−j) (x_j + b)ᵀ.

    M stays W R(δ) Wᵀ, so content is compared symmetrically; a R(δ) bᵀ is a bias of the offset, a R(δ) x_jᵀ one of offset and key:
    neither knows that i and j could be exchanged. Without rotations a and b would say nothing of positions: refused. It starts tied.
    (Borji's KV + Pos, arXiv:2305.19129, adds a table of positions to tied scores; this is the same as a Fourier series of the offset,
    and fused kernels take it.)
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.of_queries = nn.Parameter(torch.zeros(config.heads * config.head_width))
        self.of_keys = nn.Parameter(torch.zeros(config.heads * config.head_width))

    def check(self, config: Config) -> None:
        super().check(config)
        if config.position != "rotary":
            raise RheoscopeError(
                f"projection=tied_positional is asymmetric through rotations, got position={config.position}; type position=rotary"
            )

    def offsets(self) -> tuple[Tensor, Tensor]:
        return tuple(x.unflatten(-1, (-1, self.width)) for x in (self.of_queries, self.of_keys))

    def apply_positions(self, q: Queries, k: Keys, rotation: RotaryMap | None) -> tuple[Queries, Keys]:
        a, b = (broadcast_to_texts(x, len(q)).to(q.dtype) for x in self.offsets())
        return (q + a, k + b) if rotation is None else (rotation(q + a), rotation(k + b))


class PsdSkew(Tied):
    """M = B Bᵀ + U J Uᵀ: a symmetric part that is positive semi-definite, and a skew part of low rank, by construction.

    Queries are [uB, uU], keys [uB, uUJᵀ], J a quarter turn inside pairs of coordinates: those that rotary positions turn, which
    therefore commute with it: M(δ) = B R(δ) Bᵀ + U R(δ) J Uᵀ. A quarter of the pairs is skew. As many parameters as `tied`.

    **Laws** ½(M + Mᵀ) = B Bᵀ; ½(M − Mᵀ) = U J Uᵀ has rank `skew_rank` (generic W).
    """

    def check(self, config: Config) -> None:
        super().check(config)
        if config.head_width % 2 or config.head_width < 4:
            raise RheoscopeError(
                f"projection={config.projection} needs two pairs of coordinates a head, got head_width={config.head_width}; "
                "type an even head_width of 4 or more"
            )

    @property
    def skew_rank(self) -> int:
        """The rank of M − Mᵀ."""
        return 2 * max(1, self.width // 2 // PAIRS_PER_SKEW_PAIR)

    def key_signs(self, n_texts: int) -> Float[Tensor, "#b h 1 p"] | None:
        """What the symmetric coordinates of keys are multiplied by, if by anything."""
        return None

    def key_from_query(self, q: Queries) -> Keys:
        n_symmetric = (self.width - self.skew_rank) // 2
        (a, c), (b, d) = (half.split((n_symmetric, self.skew_rank // 2), -1) for half in q.chunk(2, -1))
        signs = self.key_signs(len(q))
        a, b = (a, b) if signs is None else (a * signs.to(a.dtype), b * signs.to(b.dtype))
        return torch.cat([a, -d, b, c], -1)


class SymmetricSkew(PsdSkew):
    """M = W D Wᵀ + U J Uᵀ: any symmetric part, D a learned diagonal of either sign, and a skew part of low rank.

    The routing (skew) and filtering (symmetric) parts of attention kept apart by construction, as S-D attention does
    (arXiv:2605.18826; there D keeps one sign, here it is free). Half of D starts at −1, as half of the eigenvalues of ½(M + Mᵀ)
    are negative in an untied head.
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
    """W_QᵀW_Q = W_KᵀW_K = I for every head: queries and keys are what the token is in a subspace, no length or angle inside it changed.

    Weights are made orthonormal in every forward by the triangle of their Gram matrix, W = V L⁻ᵀ with VᵀV = LLᵀ (Cholesky QR): one
    factorisation of k×k a head, exact, batched, differentiable once; a Newton–Schulz iteration would take ten products to come as near, a
    Householder QR works on d×k. Lengths of V do nothing, so decay changes the pace alone; the norm's gain is free to warm scores.
    """

    def weight(self, W: Weight) -> Weight:
        q, k, v = row_counts(self.layout)
        qk_weight, v_weight = W.split((q + k, v), dim=-2)
        return torch.cat([orthonormal_rows(qk_weight.unflatten(-2, (-1, self.width))).flatten(-3, -2), v_weight], -2)

    def read_rows(self, read: nn.Module, u: Cloud) -> Rows:
        linear_module: Any = read
        return linear(u, self.weight(linear_module.weight), linear_module.bias)


class IdentityQueries(Projection):
    """W_Q = I: head h asks with coordinates h·k … (h+1)·k of the token as it is read (arXiv:2510.23912). A quarter fewer parameters."""

    row_names = ("k", "v")

    def check(self, config: Config) -> None:
        if config.heads * config.head_width != config.width:
            raise RheoscopeError(
                f"projection=identity_queries deals the {config.width} coordinates of a token out to {config.heads} heads of "
                f"{config.head_width}; type head_width={config.width // config.heads}"
            )

    def split(self, rows: Rows, u: Cloud) -> Projected:
        k, v = rows.split(row_counts(self.layout), dim=-1)
        return (
            separate_projections(u.to(rows.dtype), self.width),
            separate_projections(k, self.width),
            separate_projections(v, self.layout["v"][1]),
        )


class SharedKV(Projection):
    """W_K = W_V: what a token is found by is what it gives (arXiv:2606.04032). Positions turn the key, not the value."""

    row_names = ("q", "k")

    def check(self, config: Config) -> None:
        if config.value_width != config.head_width:
            raise RheoscopeError(
                f"projection=shared_kv has values that are keys, got value_width={config.value_width} and "
                f"head_width={config.head_width}; type value_width={config.head_width}"
            )

    def split(self, rows: Rows, u: Cloud) -> Projected:
        q, k = (separate_projections(part, self.width) for part in rows.split(row_counts(self.layout), dim=-1))
        return q, k, k


class Gated(Untied):
    """Untied, and what head h takes to token i is multiplied by σ(u_i w_h): one number a head and token (arXiv:2505.06708, the
    head-wise gate after attention). Gates start at ½."""

    row_names = ("q", "k", "v", "gate")

    def read_rows(self, read: nn.Module, u: Cloud) -> Rows:
        """With zeros behind the gates, so that every row begins where a GPU's kernels can read it; others would be copied there."""
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


ROW_ALIGNMENT = ALIGNMENT_BYTES // 2
"""Numbers of half precision that a GPU fetches at once."""

PAIRS_PER_SKEW_PAIR = 4
"""One pair of coordinates in so many is skew."""

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
}
"""How each `projection` of a config is made."""


def orthonormal_rows(V: Float[Tensor, "*lead k d"]) -> Float[Tensor, "*lead k d"]:
    """Orthonormal rows that span what the rows of V span: L⁻¹V with VVᵀ = LLᵀ, in float32 or better.

    >>> W = orthonormal_rows(torch.randn(3, 2, 5))
    >>> bool(torch.allclose(W @ W.mT, torch.eye(2).expand(3, 2, 2), atol=1e-4))
    True
    """
    with torch.autocast(V.device.type, enabled=False):
        return _OrthonormalRows.apply(V.to(torch.promote_types(V.dtype, torch.float32)))[0].to(V.dtype)


class _OrthonormalRows(torch.autograd.Function):
    """Rows made orthonormal, with a gradient of a few products; autograd's own would solve three triangles one after the other.

    W = L⁻¹V    A = G Wᵀ, G the gradient of W    gradient of V: L⁻ᵀ (G − (tril A + (strict tril A)ᵀ) W)
    """

    @staticmethod
    def forward(V: Tensor) -> tuple[Tensor, Tensor]:
        L = torch.linalg.cholesky_ex(V @ V.mT).L  # checks nothing: a GPU would have to be waited for
        eye = torch.eye(L.shape[-1], dtype=V.dtype, device=V.device)
        inverse = torch.linalg.solve_triangular(L, eye.expand_as(L), upper=False)
        return inverse @ V, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, G: Tensor, _: Tensor) -> Tensor:
        W, inverse = ctx.saved_tensors
        A = G @ W.mT
        return inverse.mT @ (G - (A.tril() + A.tril(-1).mT) @ W)


def linear(u: Cloud, W: Weight, b: Float[Tensor, "*models rows"] | None) -> Rows:
    """u Wᵀ + b; with the weights of several models, the texts of each by its own.

    >>> linear(torch.ones(4, 3, 2), torch.ones(2, 5, 2), None).shape
    torch.Size([4, 3, 5])
    """
    if W.ndim == 2:
        return nn.functional.linear(u, W, b)
    grouped = u.unflatten(0, (len(W), -1)).flatten(1, 2)
    out = grouped @ W.mT if b is None else torch.baddbmm(b[:, None], grouped, W.mT)
    return out.view(*u.shape[:-1], -1)


def broadcast_to_texts(x: Float[Tensor, "*models h k"], n_texts: int) -> Float[Tensor, "#b h 1 k"]:
    """Numbers of every head, as they stand beside the tokens of all texts; those of several models beside the texts of each."""
    return x[None, :, None] if x.ndim == 2 else x.repeat_interleave(n_texts // len(x), 0)[..., None, :]


def separate_projections(rows: Float[Tensor, "b n hk"], width: int) -> Keys:
    """Heads of this width, which lie side by side in every row, told apart."""
    return rows.unflatten(-1, (-1, width)).transpose(1, 2)


def row_counts(layout: dict[str, tuple[int, int]]) -> list[int]:
    """How many rows each part has."""
    return [count * width for count, width in layout.values()]
