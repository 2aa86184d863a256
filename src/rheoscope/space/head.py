"""One layer of attention as operators on E: the QK circuit M and the OV circuit F of every head.

    M_h(delta) = C D_g W_Q R(delta) W_K^T D_g C scale        F_h = C D_g W_V W_O^h
    Delta_h(x_i) = sum_j alpha_ij (x̂_j F_h + b-terms)        x_i <- x_i + sum_h Delta_h(x_i) + b_O

x̂ is the token after the norm and before its gain. D_g is the gain, C = I - 11^T/d the centring of LayerNorm (identity for
RMSNorm), R(delta) the model's own rotation. Moving a gain into the weights therefore changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.definition import masked_scores, query_key_positions, repeat_kv_heads
from rheoscope.attention.feature_maps import Feature
from rheoscope.attention.lower.statistics import unchecked_statistics
from rheoscope.attention.mask import Mask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.notebook_html import card
from rheoscope.shapes import RheoscopeError
from rheoscope.space.decompositions import svdvals
from rheoscope.space.float32_products import mixed_precision_matmul
from rheoscope.space.head_contributions import FactoredDisplacements, split_constant_values
from rheoscope.space.heads_norm import HeadsNorm
from rheoscope.space.model_parts import Norm, Projected
from rheoscope.space.operator import Factored

Cloud = Float[Tensor, "n d"]


@dataclass(frozen=True, eq=False, repr=False)
class Relevance(Factored):
    """M of one head or of a layer: a Factored at offset 0, callable for any offset under RoPE.

    `M(3)` is M(delta = 3), the form between a query and the key three tokens before it. Without RoPE all offsets have the
    same operator.
    """

    rotation: Callable[[int], Tensor] | None = None

    def __getitem__(self, index: int | slice) -> "Relevance":
        return Relevance(self.left[index], self.right[index], self.rotation)

    def __call__(self, offset: int = 0) -> Factored:
        if self.rotation is None:
            return Factored(self.left, self.right)
        return Factored(self.left @ self.rotation(offset).to(self.left.dtype), self.right)

    @cached_property
    def _singular_values(self) -> Float[Tensor, "*h r"]:
        # Most callers also need the symmetric part: one decomposition serves both (a ends in rows of zeros).
        a, b = self._joint_factors
        return svdvals(a[..., : a.shape[-1], :] @ b.mT)

    def symmetry_at(self, offset: int) -> Float[Tensor, "*h"]:
        """s(delta) = tr(M(delta) M(-delta)) / (|M(delta)| |M(-delta)|): 1 for tied queries and keys at every offset."""
        if self.rotation is None:
            return self.symmetry()
        rotation = self.rotation(offset).double()
        inverse_rotation = rotation.mT  # R(-delta)
        (left, right), right_left = self.grams, self.right_left
        norm_product = _rotated_norm(left, right, rotation) * _rotated_norm(left, right, inverse_rotation)
        trace_of_product = ((rotation @ right_left) * (inverse_rotation @ right_left).mT).sum((-2, -1))
        return torch.where(norm_product > 0, trace_of_product / torch.where(norm_product > 0, norm_product, 1), 0).to(
            self.left.dtype
        )


@dataclass(frozen=True, eq=False)
class Heads:
    """All heads of one layer in the model's own tensors (views; float32 copies of half-precision tensors).

    `project(u)` are the model's own projections (with biases and QK-norm, without rotation). The matrices describe the same
    maps as operators, and the certificate proves at loading that both agree. `gate(x)`, if any, returns the factors g_h(x_i) of
    gated attention: Δ_h(x_i) = g_h(x_i) Σ_j α_ij (x̂_j F_h + b-terms). A gate may have one factor per head, or one per coordinate
    of its values, and then stands between W_V and W_O. `v_norm` divides every value by a length, as q_norm and k_norm do.
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
    v_norm: Norm | None = None
    output_norm: Norm | None = None
    gate: Callable[[Float[Tensor, "b n d"]], Float[Tensor, "b h n #e"]] | None = None
    heads_norm: HeadsNorm | None = None

    def __repr__(self) -> str:
        h, d, k = self.W_Q.shape
        return f"<Heads: {h} of width {k} in E of width {d}, {len(self.W_K)} key/value heads>"

    @property
    def n_heads(self) -> int:
        return len(self.W_Q)

    @property
    def is_scaled_dot(self) -> bool:
        """Whether scores are scaled dot products of queries and keys, before a cap and a position bias."""
        return self.mechanism.score.without_cap.is_scaled_dot

    def kv_head(self, head: int) -> int:
        """The key/value head of a query head."""
        return head // (self.n_heads // len(self.W_K))

    def M(self, raw: bool = False) -> Relevance:
        """The QK circuit of every head (h, d, d); `raw` omits the gains and the centring of all norms, as in most papers.

        f(q_i, k_j) = x̂_i M x̂_jᵀ + terms of i alone + terms of j alone. A metric score has an M too: its −|k|² is a term of j
        alone. A score without such a form (cosine, additive, …) has no M and raises.
        """
        queries, keys = self.query_key_factors(raw)
        position = self.mechanism.position
        if not position.changes_tokens:
            return Relevance(queries, keys.mT)
        width, template = (
            self.W_Q.shape[-1],
            self.W_Q.new_empty(0, dtype=torch.promote_types(self.W_Q.dtype, torch.float32)),
        )
        base_scale = position.rotation_matrix(0, width, template).diagonal()  # 1, or YaRN's factor
        return Relevance(
            queries if bool((base_scale == 1).all()) else queries * base_scale.to(queries.dtype),
            keys.mT,
            lambda offset: position.rotation_matrix(offset, width, template) / base_scale,
        )

    def query_key_factors(self, raw: bool = False) -> tuple[Float[Tensor, "h d k"], Float[Tensor, "h d k"]]:
        """The maps from x̂ to queries (with the scale) and to keys, without rotation: M = queries R keysᵀ."""
        phi, psi = bilinear_maps(self.mechanism)
        norm, q_norm, k_norm = (Norm(), None, None) if raw else (self.norm, self.q_norm, self.k_norm)
        queries = norm.fold(phi.composed_matrix(_with_gain(self.W_Q, q_norm))) * self.scale
        return queries, norm.fold(psi.composed_matrix(_repeat_kv_heads(_with_gain(self.W_K, k_norm), self.n_heads)))

    def F(self, raw: bool = False) -> Factored:
        """The OV circuit of every head (h, d, d), with the gain of a norm after attention folded in."""
        if not self.mechanism.value.is_identity:
            raise RheoscopeError(
                Message(
                    "this head maps its values by {value_map} before it sums them, so it has no F",
                    value_map=type(self.mechanism.value).__name__,
                ),
                Advice("trace.displacement(layer, head)"),
            )
        norm = Norm() if raw else self.norm
        W_O = (
            self.W_O
            if self.output_norm is None or self.output_norm.gain is None or raw
            else self.W_O * self.output_norm.gain.to(self.W_O)
        )
        W_V = self.W_V if raw else _with_gain(self.W_V, self.v_norm)
        return Factored(_repeat_kv_heads(norm.fold(W_V), self.n_heads), W_O)

    def qkv(self, x: Float[Tensor, "*b n d"]) -> Projected:
        """q, k, v of one or several clouds, by the model's own norm and projections; in half precision if x is."""
        u = self.norm.apply(x)
        return self.project(u if u.ndim == 3 else u[None])

    def select_head(self, q: Tensor, k: Tensor, head: int) -> tuple[Tensor, Tensor]:
        kv_index = self.kv_head(head)
        return q[:, head : head + 1], k[:, kv_index : kv_index + 1]

    def scores(self, x: Cloud, head: int) -> Float[Tensor, "n n"]:
        """Scores of one head before the mask, with the model's cap and position encoding."""
        q, k = (
            projection.float() if projection.dtype.itemsize < 4 else projection
            for projection in self.select_head(*self.qkv(x)[:2], head)
        )
        i, j = query_key_positions(len(x), len(x), x.device)
        mechanism = single_head_mechanism(self.mechanism, head)
        unmasked = Mechanism(mechanism.score, position=mechanism.position)
        return masked_scores(unmasked, unmasked.position.encode(q, i), unmasked.position.encode(k, j), i, j)[0, 0]

    def weights(self, x: Cloud, head: int) -> Float[Tensor, "n n"]:
        """Attention weights of one head, in float32 or better."""
        q, k, _ = self.qkv(x)
        return single_head_mechanism(self.mechanism, head).weights(*self.select_head(q, k, head))[0, 0]

    def all_weights(self, x: Cloud) -> Float[Tensor, "h n n"]:
        """The weights of all heads, with one projection of the cloud."""
        q, k, _ = self.qkv(x)
        return self.mechanism.weights(q, k)[0]

    def outputs(self, x: Float[Tensor, "*b n d"], mask: Mask | None = None) -> Float[Tensor, "*b h n e"]:
        """sum_j alpha_ij v_j of every head, before a gate, by the fastest exact lowering; `mask` forbids further keys."""
        outputs = self.mechanism.attend(*self.qkv(x), mask)
        return outputs if x.ndim == 3 else outputs[0]

    def apply_gate(
        self,
        head_outputs: Float[Tensor, "*b c n e"],
        x: Float[Tensor, "*texts n d"],
        head_indices: list[int] | None = None,
        all_outputs: Float[Tensor, "*b h n v"] | None = None,
    ) -> Float[Tensor, "*b c n e"]:
        """Head outputs (of all or some heads) times the factors of every token: of a gate and of a norm of all heads.

        `all_outputs` are the outputs from which the norm takes its length; None computes them from x, without padding.
        """
        if self.heads_norm is not None:
            scale = self.heads_norm.scale(self.outputs(x) if all_outputs is None else all_outputs)
            scale = scale if head_indices is None else scale[..., head_indices, :, :]
            head_outputs = head_outputs * scale.to(head_outputs.dtype)
        if self.gate is None:
            return head_outputs
        gate = self.gate(x.reshape(-1, *x.shape[-2:])).to(head_outputs.dtype)
        gate = gate if head_indices is None else gate[:, head_indices]
        return head_outputs * (gate if head_outputs.ndim == 4 else gate[0])

    @property
    def scales_outputs(self) -> bool:
        """Whether the outputs of heads have factors that depend on the token: those of a gate or of a norm of all heads."""
        return self.gate is not None or self.heads_norm is not None

    def attention_update(self, x: Float[Tensor, "*b n d"], mask: Mask | None = None) -> Float[Tensor, "*b n d"]:
        """The displacement of a cloud by attention: heads and constants, through the norm after attention if there is one."""
        outputs = self.outputs(x, mask)
        outputs = self.apply_gate(outputs, x, all_outputs=outputs).transpose(-3, -2).flatten(-2)
        total = self._add_output_bias(outputs @ self.W_O.to(outputs.dtype).flatten(0, 1))
        return total if self.output_norm is None else self.output_norm.apply(total)

    def statistics(
        self, x: Float[Tensor, "*b n d"], lengths: Int[Tensor, " b"] | None = None
    ) -> dict[str, Float[Tensor, "*b h n"]]:
        """Statistics of the weights of every head and row, in O(n) memory; 0 beyond the length of a text."""
        q, k, _ = self.qkv(x)
        by_name = unchecked_statistics(self.mechanism, q, k, lengths=lengths)
        return by_name if x.ndim == 3 else {name: values[0] for name, values in by_name.items()}

    def displacements(self, x: Cloud) -> Float[Tensor, "h n d"]:
        """Delta_h of every head; with `bias(x)` they add up to the displacement by attention."""
        return self.displacements_of(self.outputs(x), x)[0]

    def bias(self, x: Cloud) -> Float[Tensor, "n d"]:
        """The displacement outside the heads: b_O, through the norm after attention if there is one."""
        if self.output_norm is None:
            return self._add_output_bias(torch.zeros_like(x))
        return self.displacements_of(self.outputs(x), x)[1]

    def displacements_of(
        self, outputs: Float[Tensor, "h n e"], x: Cloud
    ) -> tuple[Float[Tensor, "h n d"], Float[Tensor, "n d"]]:
        """Delta_h of every head and the displacement outside the heads, from the outputs of the heads before a gate."""
        displacements = self.apply_gate(outputs, x, all_outputs=outputs) @ self.W_O
        output_bias = self._add_output_bias(torch.zeros_like(x))
        if self.output_norm is None:
            return displacements, output_bias
        scale = self.output_norm_scale(self._add_output_bias(displacements.sum(0)))
        constant = 0 if self.output_norm.bias is None else self.output_norm.bias
        return displacements * scale, output_bias * scale + constant

    def factored_displacements(self, x: Float[Tensor, "*b n d"], mask: Mask | None = None) -> FactoredDisplacements:
        """sum_j alpha_ij x̂_j F_h of every head, and all constants of attention together.

        A constant in every value can equally be part of the output bias, so only without it is a head's part well defined.
        `mask` forbids further keys, such as padding in a batch.
        """
        mixed_values, constant_output = split_constant_values(
            self.mechanism.with_mask(mask), *self.qkv(x), self.value_bias
        )
        if self.scales_outputs:
            outputs = mixed_values + constant_output
            constant_output = self.apply_gate(constant_output.expand_as(outputs), x, all_outputs=outputs)
            mixed_values = self.apply_gate(mixed_values, x, all_outputs=outputs)
        return (
            self.factor_displacements(mixed_values, constant_output)
            if x.ndim == 3
            else self.factor_displacements(mixed_values[0], constant_output[0])
        )

    def factor_displacements(
        self, mixed_values: Float[Tensor, "*b h n e"], constant_output: Float[Tensor, "*#b h m e"]
    ) -> FactoredDisplacements:
        """Both parts through W_O and the norm after attention, if any; `constant_output` has one row if all rows are equal."""
        constants = self._add_output_bias((constant_output @ self.W_O).sum(-3)).expand(
            *mixed_values.shape[:-3], mixed_values.shape[-2], -1
        )
        factored = FactoredDisplacements(mixed_values, self.W_O.detach(), constants)
        if self.output_norm is None:
            return factored
        total = factored.total()
        output_map = (
            factored.output_map
            if self.output_norm.gain is None
            else factored.output_map * self.output_norm.gain.detach()
        )
        constants = constants * self.output_norm_scale(total) + (
            0 if self.output_norm.bias is None else self.output_norm.bias
        )
        return FactoredDisplacements(
            mixed_values * self.output_norm.scale(total)[..., None, :, :], output_map, constants
        )

    @property
    def value_bias(self) -> Float[Tensor, "h e"] | None:
        """The value at x̂ = 0: the norm's bias through W_V, plus the bias of values."""
        if self.b_V is None and self.norm.bias is None:
            return None
        assert self.v_norm is None, "values with a norm have no bias"
        bias = torch.zeros_like(self.W_V[:, 0]) if self.norm.bias is None else self.norm.bias @ self.W_V
        return _repeat_kv_heads((bias if self.b_V is None else bias + self.b_V)[:, None], self.n_heads)[:, 0]

    def output_norm_scale(self, total: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        """c_i gain: the scale of the norm after attention for each token, times its gain; 1 without such a norm."""
        if self.output_norm is None:
            return torch.ones_like(total)
        assert self.output_norm.eps is not None
        assert not self.output_norm.subtracts_mean
        token_scale = self.output_norm.scale(total)
        return token_scale.expand_as(total) if self.output_norm.gain is None else token_scale * self.output_norm.gain

    def _add_output_bias(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        return x if self.b_O is None else x + self.b_O


@dataclass(frozen=True, eq=False)
class Head:
    """One head: `M` (QK circuit), `F` (OV circuit), its mechanism, its layer and its index.

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
        facts = {"M (QK circuit)": self.M, "F (OV circuit)": self.F, "mechanism": self._mechanism_summary}
        return card(self, f"Head L{self.layer}.H{self.head}", facts)

    @property
    def _mechanism_summary(self) -> str:
        """The names of the mechanism's parts."""
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


def project_normalised(
    norm: Norm,
    x_hat: Float[Tensor, "*b n d"],
    W: Float[Tensor, "g d k"],
    b: Float[Tensor, "g k"] | None,
    qk_norm: Norm | None,
    round_input: Callable[[Tensor], Tensor] = lambda x: x,
) -> Float[Tensor, "*b g n k"]:
    """Queries, keys or values from x̂: through the gain and the matrix, with biases and QK-norm if there are any.

    x̂ is already centred if the norm centres, so C is omitted. One product of `round_input(u)` serves all heads
    (`View.to_model_precision`).
    """
    W = W.to(x_hat.dtype)
    u = x_hat if norm.gain is None else x_hat * norm.gain.to(x_hat.dtype)
    u = u if norm.bias is None else u + norm.bias.to(x_hat.dtype)
    y = matmul_per_head(round_input(u), W)
    y = y if b is None else y + b.to(W.dtype)[:, None]
    return y if qk_norm is None else qk_norm.normed(y)


def matmul_per_head(x: Float[Tensor, "*b n d"], A: Float[Tensor, "h d k"]) -> Float[Tensor, "*b h n k"]:
    """x A for every head, as one product.

    >>> matmul_per_head(torch.ones(2, 3), torch.ones(5, 3, 4)).shape
    torch.Size([5, 2, 4])
    """
    return mixed_precision_matmul(x, A.mT.flatten(0, 1).mT).unflatten(-1, (len(A), -1)).transpose(-3, -2)


def single_head_mechanism(mechanism: Mechanism, head: int) -> Mechanism:
    """The mechanism of one head."""
    return mechanism.select_heads([head])


def bilinear_maps(mechanism: Mechanism) -> tuple[Feature, Feature]:
    """Linear phi, psi with f(q, k) = scale phi(q) psi(k)ᵀ + terms of q alone + terms of k alone; raises if there are none."""
    score = mechanism.score.without_cap
    maps = score.bilinear_maps
    if maps is not None:
        # Under RoPE a rotation lies between W and phi, so the form would depend on both positions, not only on their offset.
        is_unrotated = not mechanism.position.changes_tokens
        if all(phi.is_identity or (is_unrotated and phi.is_linear) for phi in maps):
            return maps
    score_name = type(score).__name__
    problem = (
        Message(
            "the score of this head ({score}) is not a bilinear form of its tokens, so it has no M", score=score_name
        )
        if maps is None
        else Message(
            "the score of this head ({score} of {feature}) is not a bilinear form of its tokens, so it has no M",
            score=score_name,
            feature=type(maps[0]).__name__,
        )
    )
    raise RheoscopeError(problem, Advice("trace.scores(layer, head)"))


def _rotated_norm(left_gram: Tensor, right_gram: Tensor, rotation: Tensor) -> Tensor:
    """|L R(delta) R| from the r x r matrices L^T L and R R^T."""
    return ((rotation.mT @ left_gram @ rotation) * right_gram).sum((-2, -1)).clamp(min=0).sqrt()


def _with_gain(W: Tensor, norm: Norm | None) -> Tensor:
    return W if norm is None else norm.fold_before(W)


def _repeat_kv_heads(W: Float[Tensor, "g d k"], n_heads: int) -> Float[Tensor, "h d k"]:
    return repeat_kv_heads(W[None], n_heads)[0]
