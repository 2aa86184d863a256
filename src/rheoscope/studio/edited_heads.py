"""The heads of an edited layer, with the edits written into their weights for one text.

    s'_ij = s_ij + (x̂_i − x̄) ΔM(δ) (x̂_j − x̄)ᵀ        Δ'(x_i) = Δ(x_i) + Σ_j α_ij (x̂_j − x̄) ΔF

ΔM and ΔF become extra columns of queries, keys and values, and x̄ goes into their biases. So code that reads heads works
unchanged on edited heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.feature_maps import add_gradients
from rheoscope.attention.position import BiasArray, PairBias, Position, Pullback, TokenPositions, TokenRows
from rheoscope.covers.head_replacement import OperatorEdit
from rheoscope.messages.message import Message
from rheoscope.shapes import KeyPositions, QueryPositions, RheoscopeError, Scores
from rheoscope.space.bilinear_form import Term
from rheoscope.space.head import Heads, project_normalised
from rheoscope.space.model_parts import LatentNorm, Norm, NormAcrossHeads, Projected
from rheoscope.space.safe_arithmetic import at_least_float32

HeadWeights = Float[Tensor, "h d k"]
HeadBiases = Float[Tensor, "h k"]
MAX_TOKENS = 2048
"""Assumed maximum length of a text that is not known yet."""


@dataclass(frozen=True, eq=False)
class TextStatistics:
    """What an edited layer needs from a text: x̄, the mean output of every head if one is ablated, and the last position."""

    x_mean: Float[Tensor, " d"]
    mean_outputs: Float[Tensor, "h e"] | None
    last_position: int


@dataclass(frozen=True, eq=False)
class GroupedRotation(Position):
    """A rotary position that rotates groups of columns forward, backward or not at all (see `Term`).

    A backward rotation counts positions from `last_position`. The score biases are those of `base_position`.
    """

    base_position: Position
    groups: tuple[tuple[str, int], ...]
    last_position: int = MAX_TOKENS - 1

    changes_tokens = True

    def encode(self, x: TokenRows, positions: TokenPositions) -> TokenRows:
        return torch.cat(
            [
                self.base_position.encode(columns, group_positions)
                for columns, group_positions in self._split_groups(x, positions)
            ],
            -1,
        )

    def pullback(self, positions: TokenPositions, dy: TokenRows) -> Pullback:
        pullbacks = [
            self.base_position.pullback(group_positions, columns)
            for columns, group_positions in self._split_groups(dy, positions)
        ]
        return torch.cat([grad_x for grad_x, _ in pullbacks], -1), reduce(
            add_gradients, (parameter_grads for _, parameter_grads in pullbacks)
        )

    def _split_groups(self, x: TokenRows, positions: TokenPositions) -> list[tuple[Tensor, Tensor]]:
        positions_by_kind = {
            "forth": positions,
            "back": (self.last_position - positions).clamp(min=0),
            "still": torch.zeros_like(positions),
        }
        column_groups = x.split([width for _, width in self.groups], -1)
        return [
            (columns, positions_by_kind[rotation_kind])
            for columns, (rotation_kind, _) in zip(column_groups, self.groups, strict=True)
        ]

    def rotation_matrix(self, offset: int, width: int, template: Tensor) -> Float[Tensor, "k k"]:
        offset_by_kind = {"forth": offset, "back": -offset, "still": 0}
        return torch.block_diag(
            *(
                self.base_position.rotation_matrix(offset_by_kind[rotation_kind], group_width, template)
                for rotation_kind, group_width in self.groups
            )
        )

    def check_shapes(self, b: int, h: int, m: int, n: int, d: int) -> None:
        self.base_position.check_shapes(b, h, m, n, self.groups[0][1])

    def bias(self, i: QueryPositions, j: KeyPositions) -> BiasArray | None:
        return self.base_position.bias(i, j)

    def pullback_bias(self, i: QueryPositions, j: KeyPositions, r: Scores) -> dict[str, Tensor]:
        return self.base_position.pullback_bias(i, j, r)

    def pair_bias(self, m: int, n: int) -> PairBias | None:
        return self.base_position.pair_bias(m, n)

    def select_heads(self, heads: list[int]) -> "GroupedRotation":
        return replace(self, base_position=self.base_position.select_heads(heads))


@dataclass(frozen=True, eq=False, repr=False)
class LeadingColumnsNorm(Norm):
    """A norm of queries or keys whose scale comes from the first `n_leading` columns."""

    n_leading: int = 0

    def normalise(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        return self.centre(x) * self.scale(x)

    def centre(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        return torch.cat([super().centre(x[..., : self.n_leading]), x[..., self.n_leading :]], -1)

    def scale(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n 1"]:
        return super().scale(x[..., : self.n_leading])


@dataclass(frozen=True, eq=False, repr=False)
class FixedScaleNorm(Norm):
    """A norm after attention with the scale of each token of one text held fixed."""

    fixed_scale: Float[Tensor, "n 1"] | None = None

    def apply_fixed_scale(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        """Apply the norm with the fixed scale. It has no derivative with respect to x."""
        if x.requires_grad:
            raise RheoscopeError(
                Message(
                    "there is no derivative through this layer: F is edited, so the norm after attention is held fixed. "
                    "Edit M instead, or remove the edit."
                )
            )
        return x * self.scale(x) if self.bias is None else x * self.scale(x) + self.bias

    def scale(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n 1"]:
        assert self.fixed_scale is not None
        return self.fixed_scale


@dataclass(frozen=True, eq=False)
class LayerEdits:
    """The edits of a layer: operator edits of its heads, and its ablated heads."""

    operator_edits: Sequence[OperatorEdit]
    ablated_heads: list[int]

    @property
    def form_edits(self) -> list[OperatorEdit]:
        return [edit for edit in self.operator_edits if edit.form]

    @property
    def content_edits(self) -> list[OperatorEdit]:
        return [edit for edit in self.operator_edits if edit.content is not None]

    @property
    def reweighted_heads(self) -> set[int]:
        """Heads whose attention weights change."""
        return {head for edit in self.form_edits for head in edit.head_indices}


@torch.no_grad()
def write_edits_into_heads(heads: Heads, layer_edits: LayerEdits) -> Heads:
    """Write the edits of a layer into the weights of its heads. `centre_on_text` completes them for a text."""
    edited = _add_content_columns(_fold_norm_into_heads(heads), layer_edits)
    return _add_form_columns(edited, layer_edits) if layer_edits.form_edits else edited


@torch.no_grad()
def centre_on_text(base_heads: Heads, heads: Heads, layer_edits: LayerEdits, statistics: TextStatistics) -> Heads:
    """Edited heads for one text: its x̄ and the mean outputs of ablated heads go into the biases.

    `base_heads` are the heads before the edit.
    """
    k, e, position = base_heads.W_Q.shape[-1], base_heads.W_O.shape[-2], heads.mechanism.position
    b_V = _centring_biases(heads.W_V, heads.b_V, statistics.x_mean, e)
    if statistics.mean_outputs is not None:
        b_V[layer_edits.ablated_heads, :e] = statistics.mean_outputs[layer_edits.ablated_heads].to(b_V)
    if isinstance(position, GroupedRotation):
        position = replace(position, last_position=statistics.last_position)
    centred_heads = replace(
        heads,
        b_Q=_centring_biases(heads.W_Q, heads.b_Q, statistics.x_mean, k),
        b_K=_centring_biases(heads.W_K, heads.b_K, statistics.x_mean, k),
        b_V=b_V,
        mechanism=replace(heads.mechanism, position=position),
    )
    return replace(centred_heads, project=partial(_project_qkv, centred_heads))


@torch.no_grad()
def fix_output_norm(base_heads: Heads, heads: Heads, outputs: Float[Tensor, "h n e"]) -> Heads:
    """Edited heads whose norm after attention, if there is one, keeps the scale of the original columns."""
    if base_heads.output_norm is None or heads.W_O.shape == base_heads.W_O.shape:
        return heads
    total = (outputs @ base_heads.W_O).sum(0)
    fixed_scale = base_heads.output_norm.scale(total if base_heads.b_O is None else total + base_heads.b_O)
    fixed_norm = FixedScaleNorm(
        bias=base_heads.output_norm.bias, eps=base_heads.output_norm.eps, fixed_scale=fixed_scale
    )
    gain = torch.ones_like(total[0]) if base_heads.output_norm.gain is None else base_heads.output_norm.gain.to(total)
    W_O = torch.cat([base_heads.W_O * gain, heads.W_O[:, base_heads.W_O.shape[-2] :]], -2)
    return replace(
        heads,
        W_O=W_O,
        b_O=None if base_heads.b_O is None else base_heads.b_O * gain,
        output_norm=replace(fixed_norm, apply=fixed_norm.apply_fixed_scale),
    )


def _centring_biases(W: HeadWeights, b: HeadBiases | None, mean: Float[Tensor, " d"], n_base: int) -> HeadBiases:
    """Biases that subtract x̄ from the input of the columns after the first `n_base`."""
    return torch.cat([_required_bias(b)[:, :n_base], -(mean.to(W) @ W[..., n_base:])], -1)


def _project_qkv(heads: Heads, x_hat: Float[Tensor, "b n d"]) -> Projected:
    q = project_normalised(heads.norm, x_hat, heads.W_Q, heads.b_Q, heads.q_norm)
    k = project_normalised(heads.norm, x_hat, heads.W_K, heads.b_K, heads.k_norm)
    return q, k, project_normalised(heads.norm, x_hat, heads.W_V, heads.b_V, heads.v_norm)


def _fold_norm_into_heads(heads: Heads) -> Heads:
    """The same heads as maps of x̂, with the gain and bias of the norm in their weights and without grouped keys."""
    norm = heads.norm
    projections = (heads.W_Q, heads.b_Q), (heads.W_K, heads.b_K), (heads.W_V, heads.b_V)
    (W_Q, b_Q), (W_K, b_K), (W_V, b_V) = (
        _fold_norm_into_weights(norm, at_least_float32(W), b, heads.n_heads) for W, b in projections
    )
    plain_norm = Norm(norm.normalise, eps=norm.eps, subtracts_mean=norm.subtracts_mean)
    return replace(
        heads, W_Q=W_Q, W_K=W_K, W_V=W_V, W_O=at_least_float32(heads.W_O), b_Q=b_Q, b_K=b_K, b_V=b_V, norm=plain_norm
    )


def _fold_norm_into_weights(
    norm: Norm, W: Float[Tensor, "g d k"], b: Float[Tensor, "g k"] | None, n_heads: int
) -> tuple[HeadWeights, HeadBiases]:
    bias = W.new_zeros(len(W), W.shape[-1]) if b is None else b.to(W)
    bias = bias if norm.bias is None else bias + norm.bias.to(W) @ W
    W = W if norm.gain is None else norm.gain.to(W)[:, None] * W
    return tuple(tensor.repeat_interleave(n_heads // len(tensor), 0) for tensor in (W, bias))  # type: ignore[return-value]


def _add_content_columns(heads: Heads, layer_edits: LayerEdits) -> Heads:
    """Add ΔF as extra columns of the values. The values of an ablated head are 0."""
    W, b = heads.W_V.clone(), _required_bias(heads.b_V).clone()
    W[layer_edits.ablated_heads], b[layer_edits.ablated_heads] = 0, 0
    contents = [(edit.head_indices, edit.content) for edit in layer_edits.content_edits if edit.content is not None]
    n_extra = max([F.left.shape[-1] for _, F in contents], default=0)
    left, right = W.new_zeros(*W.shape[:2], n_extra), W.new_zeros(len(W), n_extra, heads.W_O.shape[-1])
    for head_indices, F in contents:
        left[head_indices, :, : F.left.shape[-1]], right[head_indices, : F.left.shape[-1]] = (
            F.left[head_indices],
            F.right[head_indices],
        )
    return replace(
        heads,
        W_V=torch.cat([W, left], -1),
        b_V=torch.nn.functional.pad(b, (0, n_extra)),
        W_O=torch.cat([heads.W_O, right], -2),
    )


def _add_form_columns(heads: Heads, layer_edits: LayerEdits) -> Heads:
    """Add ΔM as extra columns of queries and keys. A score that is no dot product gets them as an extra term."""
    terms = _merge_terms(heads, layer_edits.form_edits)
    is_scaled_dot, n_base = heads.is_scaled_dot, heads.W_Q.shape[-1]
    left, right = (torch.cat(factors, -1) for factors in zip(*((term.left, term.right) for term in terms), strict=True))
    score, position, n_extra = heads.mechanism.score, heads.mechanism.position, left.shape[-1]
    if position.changes_tokens:
        position = GroupedRotation(
            position, (("forth", n_base), *((term.rotation_kind, term.left.shape[-1]) for term in terms))
        )
    score = score.with_model_scale(heads.scale) if is_scaled_dot else score.with_dot_columns(n_extra)
    return replace(
        heads,
        W_Q=torch.cat([heads.W_Q, left / heads.scale if is_scaled_dot else left], -1),
        W_K=torch.cat([heads.W_K, right], -1),
        b_Q=torch.nn.functional.pad(_required_bias(heads.b_Q), (0, n_extra)),
        b_K=torch.nn.functional.pad(_required_bias(heads.b_K), (0, n_extra)),
        q_norm=_widen_norm(heads.q_norm, n_base, n_extra),
        k_norm=_widen_norm(heads.k_norm, n_base, n_extra),
        mechanism=replace(heads.mechanism, score=score, position=position),
    )


def _required_bias(bias: Tensor | None) -> Tensor:
    assert bias is not None
    return bias


def _widen_norm(norm: Norm | None, n_base: int, n_extra: int) -> Norm | None:
    if norm is None:
        return None
    if isinstance(norm, NormAcrossHeads | LatentNorm):
        raise RheoscopeError(
            Message(
                "M cannot be edited in a model whose queries or keys have a norm of all heads or of a latent vector"
            )
        )
    gain = None if norm.gain is None else torch.cat([norm.gain, norm.gain.new_ones(n_extra)])
    return LeadingColumnsNorm(norm.apply, gain, norm.bias, norm.eps, norm.subtracts_mean, n_base)


def _merge_terms(heads: Heads, operator_edits: Sequence[OperatorEdit]) -> list[Term]:
    """The terms of all edits. Terms of different heads with the same rotation share columns."""
    merged: dict[tuple[str, int, int], Term] = {}
    for edit in operator_edits:
        for term_index, term in enumerate(edit.form):
            rank = term.left.shape[-1]
            zeros = term.left.new_zeros(heads.n_heads, term.left.shape[-2], rank)
            merged_term = merged.setdefault(
                (term.rotation_kind, term_index, rank), Term(zeros, zeros.clone(), term.rotation_kind)
            )
            merged_term.left[edit.head_indices] = term.left[edit.head_indices] * term.weight
            merged_term.right[edit.head_indices] = term.right[edit.head_indices]
    return list(merged.values())


def without_projection(heads: Heads, error: RheoscopeError) -> Heads:
    """The same heads with M and F, but with a projection that raises `error`."""

    def refuse(u: Tensor) -> Projected:
        raise RheoscopeError(*error.args)

    return replace(heads, project=refuse)


def projection_error(heads: Heads, layer_edits: LayerEdits) -> RheoscopeError | None:
    """The reason why the operators alone do not determine an edited layer, or None if they do."""
    if layer_edits.ablated_heads and not (heads.mechanism.normaliser.sums_to_one and heads.mechanism.value.is_identity):
        return RheoscopeError(
            Message(
                "this layer has an ablated head, and its weights do not sum to 1, so operators cannot give its mean output"
            )
        )
    return None
