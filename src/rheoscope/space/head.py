"""One layer of attention as operators on E: what each head finds relevant (M) and what it carries over (F).

    M_h(delta) = C D_g W_Q R(delta) W_K^T D_g C scale        F_h = C D_g W_V W_O^h
    Delta_h(x_i) = sum_j alpha_ij (x̂_j F_h + b-terms)        x_i <- x_i + sum_h Delta_h(x_i) + b_O

x̂ is the token after the norm and before its gain; D_g is the gain, C = I - 11^T/d the centring of LayerNorm (identity
for RMSNorm), R(delta) the model's own rotation. Moving a gain into the weights therefore changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.definition import for_every_head, positions, scores
from rheoscope.attention.feature_maps import Feature
from rheoscope.attention.lower.statistics import statistics
from rheoscope.attention.mask import Mask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.position import Placing, rotation_of
from rheoscope.notebook_html import card
from rheoscope.shapes import RheoscopeError
from rheoscope.space.autograd_pullback import transposed
from rheoscope.space.decompositions import svdvals
from rheoscope.space.float32_products import product
from rheoscope.space.head_contributions import Carried, apart
from rheoscope.space.operator import Factored

Cloud = Float[Tensor, "n d"]
Projected = tuple[Float[Tensor, "b h n k"], Float[Tensor, "b g n k"], Float[Tensor, "b g n e"]]


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm of the model: `own` is its module, the rest says what it does. No norm at all is `Norm()`.

    own(x) = x̂ * gain + bias, with x̂ = x / rms(x), or centred x / std(x) where `centred`.
    """

    own: Callable[[Tensor], Tensor] = lambda x: x
    gain: Float[Tensor, " d"] | None = None
    bias: Float[Tensor, " d"] | None = None
    eps: float | None = None
    centred: bool = False

    def __repr__(self) -> str:
        return f"<{'no norm' if self.eps is None else 'LayerNorm' if self.centred else 'RMSNorm'}>"

    def hat(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        """x̂, the token before gain and bias; x itself where there is no norm."""
        if self.eps is None:
            return x
        if x.is_cuda and not x.requires_grad:  # in one pass
            own = torch.nn.functional.layer_norm if self.centred else torch.nn.functional.rms_norm
            return own(x, x.shape[-1:], eps=self.eps)
        return self.centre(x) * self.scale(x)

    def centre(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        """x C: without its mean under LayerNorm, x itself elsewhere."""
        return x - x.mean(-1, keepdim=True) if self.centred else x

    def scale(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n 1"]:
        """What the norm multiplies a token by: x̂ = scale(x) x C."""
        if self.eps is None:
            return torch.ones_like(x[..., :1])
        return (self.centre(x).square().mean(-1, keepdim=True) + self.eps).rsqrt()

    def fold(self, W: Float[Tensor, "*h d k"]) -> Float[Tensor, "*h d k"]:
        """C D_g W: what a matrix that reads this norm does to x̂."""
        W = W if self.gain is None else self.gain.to(W.dtype)[:, None] * W
        return W - W.mean(-2, keepdim=True) if self.centred else W


@dataclass(frozen=True, eq=False)
class Turned(Placing):
    """The model's own rotary map: `turn(x, at)` rotates rows x at positions `at`."""

    turn: Callable[[Tensor, Tensor], Tensor]

    def place(self, x: Tensor, at: Tensor) -> Tensor:
        return self.turn(x, at)

    def rotation(self, offset: int, width: int, like: Tensor) -> Float[Tensor, "k k"]:
        """R(delta) with q_i R(i) (k_j R(j))^T = q_i R(i - j) k_j^T, read off the model's own tables."""
        return rotation_of(self.turn, offset, width, like)

    def pull(self, at: Tensor, dy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Turning is linear, so its transpose is the gradient at any rows, those of zeros too."""
        with torch.enable_grad():
            x = torch.zeros_like(dy, requires_grad=True)
            return transposed(self.turn(x, at), x, dy), {}

    def of_heads(self, some: list[int]) -> "Turned":
        return self


@dataclass(frozen=True, eq=False, repr=False)
class Relevance(Factored):
    """M of one head or of a layer: a Factored at offset 0 that answers for any offset under RoPE.

    `M(3)` is M(delta = 3), the form between a query and the key three tokens before it. Without RoPE every offset is the
    same operator.
    """

    rotation: Callable[[int], Tensor] | None = None

    def __getitem__(self, at: int | slice) -> "Relevance":
        return Relevance(self.left[at], self.right[at], self.rotation)

    def __call__(self, offset: int = 0) -> Factored:
        if self.rotation is None:
            return Factored(self.left, self.right)
        return Factored(self.left @ self.rotation(offset).to(self.left.dtype), self.right)

    @cached_property
    def _singular_values(self) -> Float[Tensor, "*h r"]:
        # The symmetric part of a form is asked for as well: one decomposition serves both (a ends in rows of zeros).
        a, b = self._joint
        return svdvals(a[..., : a.shape[-1], :] @ b.mT)

    def symmetry_at(self, offset: int) -> Float[Tensor, "*h"]:
        """s(delta) = tr(M(delta) M(-delta)) / (|M(delta)| |M(-delta)|): 1 for tied queries and keys at every offset."""
        if self.rotation is None:
            return self.symmetry()
        forth = self.rotation(offset).double()
        back = forth.mT  # R(-delta): what turns back
        (left, right), cross = self.grams, self.cross
        size = _turned_norm(left, right, forth) * _turned_norm(left, right, back)
        again = ((forth @ cross) * (back @ cross).mT).sum((-2, -1))
        return torch.where(size > 0, again / torch.where(size > 0, size, 1), 0).to(self.left.dtype)


@dataclass(frozen=True, eq=False)
class Heads:
    """All heads of one layer, described by the family, in the model's own tensors (views; float32 copies of those in half precision).

    `project(u)` are the model's own projections (biases and QK-norm included, rotation not); the matrices beside it say
    the same as operators, and loading proves that both agree. `gate(x)`, where there is one, are the numbers g_h(x_i) that
    multiply what a head takes to a token: Δ_h(x_i) = g_h(x_i) Σ_j α_ij (x̂_j F_h + b-terms).
    """

    W_Q: Float[Tensor, "h d k"]
    W_K: Float[Tensor, "g d k"]
    W_V: Float[Tensor, "g d e"]
    W_O: Float[Tensor, "h e d"]
    scale: float
    mechanism: Mechanism
    project: Callable[[Float[Tensor, "b n d"]], Projected]
    b_Q: Float[Tensor, "h k"] | None = None
    b_K: Float[Tensor, "g k"] | None = None
    b_V: Float[Tensor, "g e"] | None = None
    b_O: Float[Tensor, " d"] | None = None
    norm: Norm = Norm()
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    after: Norm | None = None
    gate: Callable[[Float[Tensor, "b n d"]], Float[Tensor, "b h n 1"]] | None = None

    def __repr__(self) -> str:
        h, d, k = self.W_Q.shape
        return f"<Heads: {h} of width {k} in E of width {d}, {len(self.W_K)} of keys and values>"

    @property
    def count(self) -> int:
        return len(self.W_Q)

    @property
    def plain(self) -> bool:
        """Whether scores are scaled dot products of queries and keys, before a cap and a bias of position."""
        return self.mechanism.score.uncapped.plain

    def group(self, head: int) -> int:
        """The key/value head that a query head reads."""
        return head // (self.count // len(self.W_K))

    def M(self, raw: bool = False) -> Relevance:
        """The QK circuit of every head (h, d, d); `raw` leaves the gains and centring of all norms out, as papers do.

        f(q_i, k_j) = x̂_i M x̂_jᵀ + terms of i alone + terms of j alone: a metric has an M too, its −|k|² is a term of j
        alone. A score that is no such form (cosine, additive, …) has no M and is refused.
        """
        queries, keys = self.sides(raw)
        position = self.mechanism.position
        if not position.moves:
            return Relevance(queries, keys.mT)
        width, like = (
            self.W_Q.shape[-1],
            self.W_Q.new_empty(0, dtype=torch.promote_types(self.W_Q.dtype, torch.float32)),
        )
        here = position.rotation(0, width, like).diagonal()  # 1, or YaRN's factor
        return Relevance(
            queries if bool((here == 1).all()) else queries * here.to(queries.dtype),
            keys.mT,
            lambda offset: position.rotation(offset, width, like) / here,
        )

    def sides(self, raw: bool = False) -> tuple[Float[Tensor, "h d k"], Float[Tensor, "h d k"]]:
        """What makes queries (with the scale) and keys of x̂, every rotation left out: M = queries R keysᵀ."""
        phi, psi = bilinear(self.mechanism)
        norm, q_norm, k_norm = (Norm(), None, None) if raw else (self.norm, self.q_norm, self.k_norm)
        queries = norm.fold(phi.after(_gained(self.W_Q, q_norm))) * self.scale
        return queries, norm.fold(psi.after(_shared(_gained(self.W_K, k_norm), self.count)))

    def F(self, raw: bool = False) -> Factored:
        """The OV circuit of every head (h, d, d), with the gain of a norm after attention folded in."""
        if not self.mechanism.value.identity:
            raise RheoscopeError(
                f"this head maps its values by {type(self.mechanism.value).__name__} before it adds them up, so it has no F; "
                "type trace.displacement(layer, head) for what it does"
            )
        norm = Norm() if raw else self.norm
        W_O = (
            self.W_O
            if self.after is None or self.after.gain is None or raw
            else self.W_O * self.after.gain.to(self.W_O)
        )
        return Factored(_shared(norm.fold(self.W_V), self.count), W_O)

    def read(self, x: Float[Tensor, "*b n d"]) -> Projected:
        """q, k, v of a cloud or of several, by the model's own norm and projections; in half precision if x is."""
        u = self.norm.own(x)
        return self.project(u if u.ndim == 3 else u[None])

    def one(self, q: Tensor, k: Tensor, head: int) -> tuple[Tensor, Tensor]:
        g = self.group(head)
        return q[:, head : head + 1], k[:, g : g + 1]

    def scores(self, x: Cloud, head: int) -> Float[Tensor, "n n"]:
        """Scores of one head before the mask, with cap and position as the model has them."""
        q, k = (part.float() if part.dtype.itemsize < 4 else part for part in self.one(*self.read(x)[:2], head))
        i, j = positions(len(x), len(x), x.device)
        mechanism = of_head(self.mechanism, head)
        bare = Mechanism(mechanism.score, position=mechanism.position)
        return scores(bare, bare.position.place(q, i), bare.position.place(k, j), i, j)[0, 0]

    def weights(self, x: Cloud, head: int) -> Float[Tensor, "n n"]:
        """Attention weights of one head, in float32 or better."""
        q, k, _ = self.read(x)
        return of_head(self.mechanism, head).weights(*self.one(q, k, head))[0, 0]

    def every_weights(self, x: Cloud) -> Float[Tensor, "h n n"]:
        """The same of all heads, from one reading of the cloud."""
        q, k, _ = self.read(x)
        return self.mechanism.weights(q, k)[0]

    def outputs(self, x: Float[Tensor, "*b n d"], mask: Mask | None = None) -> Float[Tensor, "*b h n e"]:
        """sum_j alpha_ij v_j of every head, before a gate, on the fastest exact lowering; `mask` forbids keys besides."""
        found = self.mechanism.attend(*self.read(x), mask)
        return found if x.ndim == 3 else found[0]

    def gated(
        self, out: Float[Tensor, "*b c n e"], x: Float[Tensor, "*texts n d"], some: list[int] | None = None
    ) -> Float[Tensor, "*b c n e"]:
        """Outputs of heads (of some), or what stands in their place, as they are written: times the gate of every token, if any."""
        if self.gate is None:
            return out
        gate = self.gate(x.reshape(-1, *x.shape[-2:])).to(out.dtype)
        gate = gate if some is None else gate[:, some]
        return out * (gate if out.ndim == 4 else gate[0])

    def added(self, x: Float[Tensor, "*b n d"], mask: Mask | None = None) -> Float[Tensor, "*b n d"]:
        """All that attention adds to a cloud, heads and constants, through the norm after attention where there is one."""
        outputs = self.gated(self.outputs(x, mask), x).transpose(-3, -2).flatten(-2)
        total = self._with_bias(outputs @ self.W_O.to(outputs.dtype).flatten(0, 1))
        return total if self.after is None else self.after.own(total)

    def statistics(
        self, x: Float[Tensor, "*b n d"], lengths: Int[Tensor, " b"] | None = None
    ) -> dict[str, Float[Tensor, "*b h n"]]:
        """What the weights of every head are like, row by row, in O(n) memory; 0 beyond the length of a text."""
        q, k, _ = self.read(x)
        found = statistics(self.mechanism, q, k, lengths=lengths)
        return found if x.ndim == 3 else {name: part[0] for name, part in found.items()}

    def displacements(self, x: Cloud) -> Float[Tensor, "h n d"]:
        """Delta_h of every head: they add up, with `bias(x)`, to what attention did to the cloud."""
        moved = self.gated(self.outputs(x), x) @ self.W_O
        return moved if self.after is None else moved * self.after_scale(self._with_bias(moved.sum(0)))

    def bias(self, x: Cloud) -> Float[Tensor, "n d"]:
        """What attention adds beside the heads: b_O, through the norm after attention where there is one."""
        bias = self._with_bias(torch.zeros_like(x))
        if self.after is None:
            return bias
        scale = self.after_scale(self._with_bias((self.gated(self.outputs(x), x) @ self.W_O).sum(0)))
        return bias * scale + (0 if self.after.bias is None else self.after.bias)

    def carried(self, x: Float[Tensor, "*b n d"], mask: Mask | None = None) -> Carried:
        """What every head takes from the tokens, sum_j alpha_ij x̂_j F_h, and all constants of attention together.

        A constant that is added to every value can as well be added to the output: only apart from it a head is told
        from the other heads. `mask` forbids keys besides: padding, where texts stand side by side.
        """
        tokens, constant = apart(self.mechanism.under(mask), *self.read(x), self.value_bias)
        tokens = self.gated(tokens, x)
        constant = constant if self.gate is None else self.gated(constant.expand(*tokens.shape[:3], -1), x)
        return self.as_carried(tokens, constant) if x.ndim == 3 else self.as_carried(tokens[0], constant[0])

    def as_carried(self, tokens: Float[Tensor, "*b h n e"], constant: Float[Tensor, "*#b h m e"]) -> Carried:
        """Both through W_O and, where there is one, the norm after attention; `constant` has one row where all are the same."""
        rest = self._with_bias((constant @ self.W_O).sum(-3)).expand(*tokens.shape[:-3], tokens.shape[-2], -1)
        made = Carried(tokens, self.W_O.detach(), rest)
        if self.after is None:
            return made
        total = made.total()
        write = made.write if self.after.gain is None else made.write * self.after.gain.detach()
        rest = rest * self.after_scale(total) + (0 if self.after.bias is None else self.after.bias)
        return Carried(tokens * self.after.scale(total)[..., None, :, :], write, rest)

    @property
    def value_bias(self) -> Float[Tensor, "h e"] | None:
        """What a value is at x̂ = 0: the norm's bias through W_V, and the bias of values."""
        if self.b_V is None and self.norm.bias is None:
            return None
        bias = torch.zeros_like(self.W_V[:, 0]) if self.norm.bias is None else self.norm.bias @ self.W_V
        return _shared((bias if self.b_V is None else bias + self.b_V)[:, None], self.count)[:, 0]

    def after_scale(self, total: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        """c_i gain: the realised per-token scale of the norm after attention, times its gain; 1 where there is none."""
        if self.after is None:
            return torch.ones_like(total)
        assert self.after.eps is not None
        assert not self.after.centred
        c = self.after.scale(total)
        return c.expand_as(total) if self.after.gain is None else c * self.after.gain

    def _with_bias(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        return x if self.b_O is None else x + self.b_O


@dataclass(frozen=True, eq=False)
class Head:
    """One head: `M` (QK circuit), `F` (OV circuit), its mechanism, and where it stands.

    >>> import rheoscope as rs
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = rs.load(GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=9)))
    >>> model.view.head(0, 1).M.shape
    (8, 8)
    """

    layer: int
    head: int
    heads: Heads

    def __repr__(self) -> str:
        return f"<Head L{self.layer}.H{self.head}: M {self.M!r}, F {self.F!r}>"

    def _repr_html_(self) -> str:
        told = {"M (QK circuit)": self.M, "F (OV circuit)": self.F, "mechanism": self._parts}
        return card(self, f"Head L{self.layer}.H{self.head}", told)

    @property
    def _parts(self) -> str:
        """What its mechanism is made of, by the names of the parts."""
        return ", ".join(type(getattr(self.mechanism, part.name)).__name__ for part in fields(self.mechanism))

    @cached_property
    def M(self) -> Relevance:
        return self.heads.M()[self.head]

    @cached_property
    def F(self) -> Factored:
        return self.heads.F()[self.head]

    @property
    def mechanism(self) -> Mechanism:
        return self.heads.mechanism

    @property
    def W_QK(self) -> Relevance:
        return self.M

    @property
    def W_OV(self) -> Factored:
        return self.F


def through(
    norm: Norm,
    hat: Float[Tensor, "*b n d"],
    W: Float[Tensor, "g d k"],
    b: Float[Tensor, "g k"] | None,
    then: Norm | None,
    as_read: Callable[[Tensor], Tensor] = lambda x: x,
) -> Float[Tensor, "*b g n k"]:
    """Queries, keys or values from x̂: through the gain and the matrix, with the biases and the QK-norm where there are any.

    x̂ is centred where the norm centres, so C is left out; one product serves all heads, of what `as_read` rounds to (`View.as_read`).
    """
    W = W.to(hat.dtype)
    u = hat if norm.gain is None else hat * norm.gain.to(hat.dtype)
    u = u if norm.bias is None else u + norm.bias.to(hat.dtype)
    y = by_every_head(as_read(u), W)
    y = y if b is None else y + b.to(W.dtype)[:, None]
    return y if then is None else then.hat(y) * (1.0 if then.gain is None else then.gain.to(W.dtype))


def by_every_head(x: Float[Tensor, "*b n d"], A: Float[Tensor, "h d k"]) -> Float[Tensor, "*b h n k"]:
    """x A of every head, as one product.

    >>> by_every_head(torch.ones(2, 3), torch.ones(5, 3, 4)).shape
    torch.Size([5, 2, 4])
    """
    return product(x, A.mT.flatten(0, 1).mT).unflatten(-1, (len(A), -1)).transpose(-3, -2)


def of_head(mechanism: Mechanism, head: int) -> Mechanism:
    """The mechanism of one head alone."""
    return mechanism.of_heads([head])


def bilinear(mechanism: Mechanism) -> tuple[Feature, Feature]:
    """phi and psi with f(q, k) = scale phi(q) psi(k)ᵀ + terms of q alone + terms of k alone, both linear; refused where none are."""
    score = mechanism.score.uncapped
    form = score.bilinear
    if form is not None:
        # Under RoPE a rotation stands between W and phi: the form then depends on both places, not on their offset alone.
        still = not mechanism.position.moves
        if all(phi.identity or (still and phi.linear) for phi in form):
            return form
    what = type(score).__name__ + ("" if form is None else f" of {type(form[0]).__name__}")
    raise RheoscopeError(
        f"the score of this head ({what}) is no bilinear form of its tokens, so it has no M; "
        "type trace.scores(layer, head) for its scores"
    )


def _turned_norm(left: Tensor, right: Tensor, turn: Tensor) -> Tensor:
    """|L R(delta) R| from the r x r matrices L^T L and R R^T."""
    return ((turn.mT @ left @ turn) * right).sum((-2, -1)).clamp(min=0).sqrt()


def _gained(W: Tensor, norm: Norm | None) -> Tensor:
    return W if norm is None or norm.gain is None else W * norm.gain.to(W.dtype)


def _shared(W: Float[Tensor, "g d k"], heads: int) -> Float[Tensor, "h d k"]:
    return for_every_head(W[None], heads)[0]
