"""What can stand in the place of M and of F: one small function and one line each."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rheoscope.shapes import RheoscopeError
from rheoscope.space.bilinear_form import Form, Term, operator_at_offset, scale_form, swap_sides, transpose_form
from rheoscope.space.head import Heads
from rheoscope.space.operator import Factored


@dataclass(frozen=True)
class Replacement:
    """From the heads of a layer, their own M or F and a rank (0 where the name has none) to what stands in its place.

    `centred`: the operator is replaced between tokens less the mean of their cloud, and what the mean does stays; else
    between the tokens themselves, so that what the mean asks for is changed with it.
    """

    build: Callable[[Heads, Any, int], Any]
    description: str
    centred: bool = True
    rank: int = 0


def symmetric_form(heads: Heads, form: Form, rank: int) -> Form:
    return scale_form(form, 0.5) + scale_form(transpose_form(form), 0.5)


def symmetric_score_form(heads: Heads, form: Form, rank: int) -> Form:
    return scale_form(form, 0.5) + scale_form(swap_sides(form), 0.5)


def skew_form(heads: Heads, form: Form, rank: int) -> Form:
    return scale_form(form, 0.5) + scale_form(transpose_form(form), -0.5)


def zero_offset_form(heads: Heads, form: Form, rank: int) -> Form:
    if not heads.mechanism.position.changes_tokens:
        return form
    return tuple(replace(term, rotation_kind="still") for term in form)


def positive_form(heads: Heads, form: Form, rank: int) -> Form:
    if heads.mechanism.position.changes_tokens:
        raise RheoscopeError(
            "under RoPE M is another form at every offset, so it has no one positive part; type M='symmetric' or M='at_zero'"
        )
    positive_part = operator_at_offset(heads, form, 0).positive_part()
    return (Term(positive_part.left, positive_part.right.mT),)


def low_rank_form(heads: Heads, form: Form, rank: int) -> Form:
    """Both sides projected on the leading singular vectors of M(0): its best copy of that rank, and of that rank at any δ."""
    (full_term,) = form
    _check_rank(rank, full_term.left.shape[-1], "M")
    u, _, vh = operator_at_offset(heads, form, 0).svd()
    u, v = u[..., :rank], vh[..., :rank, :].mT
    return (Term(u @ (u.mT @ full_term.left), v @ (v.mT @ full_term.right)),)


def low_rank_content(heads: Heads, content: Factored, rank: int) -> Factored:
    _check_rank(rank, content.left.shape[-1], "F")
    return content.truncate_rank(rank)


RELEVANCE: dict[str, Replacement] = {
    "identity": Replacement(lambda heads, form, rank: form, "M(δ) as it is"),
    "symmetric": Replacement(symmetric_form, "½(M(δ) + M(δ)ᵀ)"),
    "symmetric_naive": Replacement(symmetric_form, "½(M(δ) + M(δ)ᵀ), not centred", centred=False),
    "symmetric_scores": Replacement(symmetric_score_form, "½(M(δ) + M(−δ)ᵀ): scores of a pair alike both ways"),
    "symmetric_scores_naive": Replacement(symmetric_score_form, "½(M(δ) + M(−δ)ᵀ), not centred", centred=False),
    "skew": Replacement(skew_form, "½(M(δ) − M(δ)ᵀ)"),
    "skew_naive": Replacement(skew_form, "½(M(δ) − M(δ)ᵀ), not centred", centred=False),
    "at_zero": Replacement(zero_offset_form, "M(0) at every offset"),
    "positive": Replacement(positive_form, "the positive part of ½(M + Mᵀ), without RoPE"),
    "rank": Replacement(low_rank_form, "M(δ) at rank {}, on the leading singular vectors of M(0)"),
}
"""What stands in the place of M."""
CONTENT: dict[str, Replacement] = {
    "identity": Replacement(lambda heads, content, rank: content, "F as it is"),
    "symmetric": Replacement(lambda heads, content, rank: content.symmetric_part(), "½(F + Fᵀ)"),
    "symmetric_naive": Replacement(
        lambda heads, content, rank: content.symmetric_part(), "½(F + Fᵀ), not centred", centred=False
    ),
    "rank": Replacement(low_rank_content, "the best copy of F of rank {}"),
}
"""What stands in the place of F."""


def find_replacement(name: str, table: dict[str, Replacement], operator: str) -> Replacement:
    """A replacement by its name; 'rank 8' (or rank:8) has its rank behind it."""
    rank_match = re.fullmatch(r"rank[ :=](\d+)", name)
    if rank_match:
        return replace(
            table["rank"], rank=int(rank_match[1]), description=table["rank"].description.format(rank_match[1])
        )
    if name == "rank" or name not in table:
        known_names = ", ".join("'rank 8'" if option == "rank" else option for option in table)
        raise RheoscopeError(f"unknown replacement of {operator}: {name!r}; type one of {known_names}")
    return table[name]


def _check_rank(rank: int, max_rank: int, operator: str) -> None:
    if not 1 <= rank <= max_rank:
        raise RheoscopeError(
            f"the rank of {operator} lies in 1 to {max_rank} in this model, got {rank}; type {operator}='rank {max_rank}'"
        )
