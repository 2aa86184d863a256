"""The form of every head of a layer as a sum of thin terms: what it is at an offset, and what it does between running tokens.

    x_i M(δ) x_jᵀ = sum of weight · x_i left R rightᵀ x_jᵀ,   R one of R(δ) (forth), R(−δ) (back), R(0) (still)

The transpose of M(δ) turns back, that of M(−δ) turns forth: so both are terms again, never a (d, d) matrix, and a change of
the form is a few more columns of queries and of keys.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.space.head import Heads, through
from rheoscope.space.operator import Factored
from rheoscope.space.safe_arithmetic import exact

Some = list[int] | slice
"""Which heads."""
Columns = tuple[Float[Tensor, "*b h n r"], Float[Tensor, "*b h n r"]]


@dataclass(frozen=True, eq=False)
class Term:
    """weight · left R rightᵀ of every head; `turn` names R: forth (of i − j), back (of j − i) or still (of 0)."""

    left: Float[Tensor, "h d r"]
    right: Float[Tensor, "h d r"]
    turn: str = "forth"
    weight: float = 1.0

    def __mul__(self, by: float) -> "Term":
        return replace(self, weight=self.weight * by)


Form = tuple[Term, ...]


def own_form(heads: Heads) -> Form:
    """M(δ) of every head in float32 or better; a head without M is refused."""
    queries, keys = heads.sides()
    return (Term(exact(queries), exact(keys)),)


def transposed(form: Form) -> Form:
    """M(δ)ᵀ: sides exchanged, turning the other way."""
    other = {"forth": "back", "back": "forth", "still": "still"}
    return tuple(Term(term.right, term.left, other[term.turn], term.weight) for term in form)


def exchanged(form: Form) -> Form:
    """M(−δ)ᵀ, whose scores are those of the pair the other way round: sides exchanged, turning as before."""
    return tuple(Term(term.right, term.left, term.turn, term.weight) for term in form)


def times(form: Form, by: float) -> Form:
    return tuple(term * by for term in form)


def less(new: Form, old: Form) -> Form:
    """new − old; terms of the same factors are one, and one of weight 0 is none: what stays the same is no change at all."""
    found: dict[tuple[int, int, str], Term] = {}
    for term in (*new, *times(old, -1.0)):
        key = id(term.left), id(term.right), term.turn
        found[key] = replace(term, weight=term.weight + (found[key].weight if key in found else 0.0))
    return tuple(term for term in found.values() if term.weight)


def at_offset(heads: Heads, form: Form, offset: int) -> Factored:
    """The form between a query and the key `offset` tokens before it, as one operator of every head."""
    lefts, rights, position = [], [], heads.mechanism.position
    for term in form:
        left = term.left * term.weight
        if position.moves:
            by = {"forth": offset, "back": -offset, "still": 0}[term.turn]
            left = left @ position.rotation(by, left.shape[-1], left)
        lefts.append(left)
        rights.append(term.right)
    return Factored(torch.cat(lefts, -1), torch.cat(rights, -1).mT)


def columns(
    heads: Heads, form: Form, cloud: Float[Tensor, "*b n d"], hat: Float[Tensor, "*b n d"], some: Some = slice(None)
) -> Columns:
    """The form of `some` heads between rows of a cloud (or of several) as columns of queries and of keys, whose products are its scores.

    `hat` are the tokens themselves: under QK-norm a form carries the scales that their own queries and keys have.
    """
    asking, answering = (scale[..., some, :, :] for scale in realised(heads, hat))
    queries, keys = [], []
    for term in form:
        at = _places(term.turn, cloud.shape[-2], cloud.device)
        left, right = (_placed(heads, cloud[..., None, :, :] @ W[some], at) for W in (term.left, term.right))
        queries.append(left * term.weight)
        keys.append(right)
    return torch.cat(queries, -1) * asking, torch.cat(keys, -1) * answering


def _placed(heads: Heads, x: Float[Tensor, "*b h n r"], at: Int[Tensor, " n"]) -> Float[Tensor, "*b h n r"]:
    return heads.mechanism.position.place(x.reshape(-1, *x.shape[-3:]), at).reshape(x.shape)


def _places(turn: str, n: int, device: torch.device) -> Int[Tensor, " n"]:
    """Where tokens stand: R(i) R(j)ᵀ is R(i − j), counted from the end R(j − i), all at one place R(0)."""
    at = torch.arange(n, device=device)
    return {"forth": at, "back": n - 1 - at, "still": torch.zeros_like(at)}[turn]


def realised(heads: Heads, hat: Float[Tensor, "*b n d"]) -> tuple[Tensor, Tensor]:
    """The scales (*b, h, n, 1) that a QK-norm gives to queries and to keys; 1 where there is none."""
    found = []
    for W, b, norm in ((heads.W_Q, heads.b_Q, heads.q_norm), (heads.W_K, heads.b_K, heads.k_norm)):
        one = hat.new_ones(len(W), hat.shape[-2], 1)
        scale = one if norm is None else norm.scale(through(heads.norm, hat, W, b, None))
        found.append(scale.repeat_interleave(heads.count // len(W), dim=-3))
    return found[0], found[1]


def with_columns(mechanism: Mechanism, q: Tensor, k: Tensor, more: Columns) -> tuple[Mechanism, Tensor, Tensor]:
    """The mechanism, queries and keys (of every head) whose scores have the products of further columns in them, inside a cap."""
    exact = torch.promote_types(q.dtype, torch.float32)
    queries, keys = ((x if x.ndim == 4 else x[None]).to(exact) for x in more)
    return (
        replace(mechanism, score=mechanism.score.with_columns(queries.shape[-1])),
        torch.cat([q.to(exact), queries], -1),
        torch.cat([k.to(exact), keys], -1),
    )
