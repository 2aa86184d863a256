"""The bilinear form of every head as a sum of low-rank terms, at an offset or between the tokens of a text.

    x_i M(δ) x_jᵀ = sum of weight · x_i left R rightᵀ x_jᵀ,   R one of R(δ) (forth), R(−δ) (back), R(0) (still)

The transpose of M(δ) rotates by −δ, that of M(−δ) by δ. So both are sums of terms, without a (d, d) matrix, and an edit of the
form adds a few columns to the queries and keys.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.space.head import Heads, project_normalised
from rheoscope.space.operator import Factored
from rheoscope.space.safe_arithmetic import at_least_float32

HeadSelection = list[int] | slice
"""Indices of heads."""
Columns = tuple[Float[Tensor, "*b h n r"], Float[Tensor, "*b h n r"]]


@dataclass(frozen=True, eq=False)
class Term:
    """weight · left R rightᵀ of every head; `rotation_kind` names R: forth (i − j), back (j − i) or still (0)."""

    left: Float[Tensor, "h d r"]
    right: Float[Tensor, "h d r"]
    rotation_kind: str = "forth"
    weight: float = 1.0

    def __mul__(self, factor: float) -> "Term":
        return replace(self, weight=self.weight * factor)


Form = tuple[Term, ...]


def heads_form(heads: Heads) -> Form:
    """M(δ) of every head in float32 or better; raises for a head without M."""
    queries, keys = heads.query_key_factors()
    return (Term(at_least_float32(queries), at_least_float32(keys)),)


def transpose_form(form: Form) -> Form:
    """M(δ)ᵀ: factors exchanged, rotation reversed."""
    opposite = {"forth": "back", "back": "forth", "still": "still"}
    return tuple(Term(term.right, term.left, opposite[term.rotation_kind], term.weight) for term in form)


def swap_sides(form: Form) -> Form:
    """M(−δ)ᵀ, the scores of the pair in the other direction: factors exchanged, same rotation."""
    return tuple(Term(term.right, term.left, term.rotation_kind, term.weight) for term in form)


def scale_form(form: Form, factor: float) -> Form:
    return tuple(term * factor for term in form)


def subtract_forms(new: Form, old: Form) -> Form:
    """new − old. Terms with the same factors are merged, and terms of weight 0 are dropped."""
    terms: dict[tuple[int, int, str], Term] = {}
    for term in (*new, *scale_form(old, -1.0)):
        key = id(term.left), id(term.right), term.rotation_kind
        terms[key] = replace(term, weight=term.weight + (terms[key].weight if key in terms else 0.0))
    return tuple(term for term in terms.values() if term.weight)


def operator_at_offset(heads: Heads, form: Form, offset: int) -> Factored:
    """The form between a query and the key `offset` tokens before it, as one operator per head."""
    lefts, rights, position = [], [], heads.mechanism.position
    for term in form:
        left = term.left * term.weight
        if position.changes_tokens:
            signed_offset = {"forth": offset, "back": -offset, "still": 0}[term.rotation_kind]
            left = left @ position.rotation_matrix(signed_offset, left.shape[-1], left)
        lefts.append(left)
        rights.append(term.right)
    return Factored(torch.cat(lefts, -1), torch.cat(rights, -1).mT)


def query_key_columns(
    heads: Heads,
    form: Form,
    cloud: Float[Tensor, "*b n d"],
    x_hat: Float[Tensor, "*b n d"],
    head_selection: HeadSelection = slice(None),
) -> Columns:
    """Columns of queries and keys whose products are the scores of a form, for selected heads and one or several clouds.

    `x_hat` are the tokens of the model: under QK-norm a form uses the scales of their queries and keys.
    """
    query_scale, key_scale = (scale[..., head_selection, :, :] for scale in qk_norm_scales(heads, x_hat))
    queries, keys = [], []
    for term in form:
        positions = _rotation_positions(term.rotation_kind, cloud.shape[-2], cloud.device)
        left, right = (
            _apply_positions(heads, _project(cloud, W[head_selection]), positions) for W in (term.left, term.right)
        )
        queries.append(left * query_scale * term.weight)
        keys.append(right * key_scale)
    return torch.cat(queries, -1), torch.cat(keys, -1)


def _project(cloud: Float[Tensor, "*b n d"], W: Float[Tensor, "h d r"]) -> Float[Tensor, "*b h n r"]:
    """The image of the cloud under the factor of every head, as one product."""
    return (cloud @ W.transpose(0, 1).flatten(1)).unflatten(-1, (len(W), -1)).movedim(-2, -3)


def _apply_positions(
    heads: Heads, x: Float[Tensor, "*b h n r"], positions: Int[Tensor, " n"]
) -> Float[Tensor, "*b h n r"]:
    return heads.mechanism.position.encode(x.reshape(-1, *x.shape[-3:]), positions).reshape(x.shape)


def _rotation_positions(rotation_kind: str, n: int, device: torch.device) -> Int[Tensor, " n"]:
    """Positions that produce R: i yields R(i) R(j)ᵀ = R(i − j), reversed positions R(j − i), equal positions R(0)."""
    positions = torch.arange(n, device=device)
    return {"forth": positions, "back": n - 1 - positions, "still": torch.zeros_like(positions)}[rotation_kind]


def qk_norm_scales(heads: Heads, x_hat: Float[Tensor, "*b n d"]) -> tuple[Tensor, Tensor]:
    """The scales (*b, h, n, 1) of the QK-norm for queries and keys; 1 without a QK-norm."""
    scales = []
    for W, b, norm in ((heads.W_Q, heads.b_Q, heads.q_norm), (heads.W_K, heads.b_K, heads.k_norm)):
        unit_scale = x_hat.new_ones(len(W), x_hat.shape[-2], 1)
        scale = unit_scale if norm is None else norm.scale(project_normalised(heads.norm, x_hat, W, b, None))
        scale = scale.expand(*scale.shape[:-3], len(W), -1, -1)
        scales.append(scale.repeat_interleave(heads.n_heads // len(W), dim=-3))
    return scales[0], scales[1]


def with_dot_columns(
    mechanism: Mechanism, q: Tensor, k: Tensor, extra_columns: Columns
) -> tuple[Mechanism, Tensor, Tensor]:
    """A mechanism, queries and keys of every head whose scores include the products of extra columns, inside a cap."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    queries, keys = ((x if x.ndim == 4 else x[None]).to(dtype) for x in extra_columns)
    return (
        replace(mechanism, score=mechanism.score.with_dot_columns(queries.shape[-1])),
        torch.cat([q.to(dtype), queries], -1),
        torch.cat([k.to(dtype), keys], -1),
    )
