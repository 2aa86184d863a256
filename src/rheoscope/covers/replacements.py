"""The replacements of M and F by name, such as `symmetric` or `rank 8`."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.bilinear_form import Form, Term, operator_at_offset, scale_form, swap_sides, transpose_form
from rheoscope.space.head import Heads
from rheoscope.space.operator import Factored


@dataclass(frozen=True)
class Replacement:
    """A function from the heads of a layer, their M or F and a rank to the operator that replaces it.

    If `centred`, the operator is replaced only for centred tokens x̂ − x̄, so the terms of the mean x̄ stay. Otherwise it is replaced
    for x̂. `rank` is 0 for replacements without a rank.
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
            Message("under RoPE M is another form at every offset, so it has no single positive part"),
            use(M="symmetric"),
        )
    positive_part = operator_at_offset(heads, form, 0).positive_part()
    return (Term(positive_part.left, positive_part.right.mT),)


def low_rank_form(heads: Heads, form: Form, rank: int) -> Form:
    """M(δ) projected on the leading singular vectors of M(0): the best approximation at δ = 0, and of that rank at any δ."""
    (full_term,) = form
    _check_rank(rank, full_term.left.shape[-1], "M")
    u, _, vh = operator_at_offset(heads, form, 0).svd()
    u, v = u[..., :rank], vh[..., :rank, :].mT
    return (Term(u @ (u.mT @ full_term.left), v @ (v.mT @ full_term.right)),)


def low_rank_content(heads: Heads, content: Factored, rank: int) -> Factored:
    _check_rank(rank, content.left.shape[-1], "F")
    return content.truncate_rank(rank)


SYMMETRIC_M, SYMMETRIC_SCORES_M, SKEW_M = "½(M(δ) + M(δ)ᵀ)", "½(M(δ) + M(−δ)ᵀ)", "½(M(δ) − M(δ)ᵀ)"
SYMMETRIC_F = "½(F + Fᵀ)"


def not_centred(build: Callable[[Heads, Any, int], Any], formula: str) -> Replacement:
    """The variant of a replacement that acts on x̂ instead of x̂ − x̄."""
    return Replacement(build, Message("{formula}, not centred", formula=formula), centred=False)


RELEVANCE: dict[str, Replacement] = {
    "identity": Replacement(lambda heads, form, rank: form, Message("unchanged M(δ)")),
    "symmetric": Replacement(symmetric_form, SYMMETRIC_M),
    "symmetric_naive": not_centred(symmetric_form, SYMMETRIC_M),
    "symmetric_scores": Replacement(symmetric_score_form, SYMMETRIC_SCORES_M),
    "symmetric_scores_naive": not_centred(symmetric_score_form, SYMMETRIC_SCORES_M),
    "skew": Replacement(skew_form, SKEW_M),
    "skew_naive": not_centred(skew_form, SKEW_M),
    "at_zero": Replacement(zero_offset_form, Message("M(0) at every offset")),
    "positive": Replacement(positive_form, Message("the positive part of ½(M + Mᵀ)")),
    "rank": Replacement(low_rank_form, Message("M(δ) at rank {rank}, on the leading singular vectors of M(0)", rank=0)),
}
"""Replacements of M by name."""
CONTENT: dict[str, Replacement] = {
    "identity": Replacement(lambda heads, content, rank: content, Message("unchanged F")),
    "symmetric": Replacement(lambda heads, content, rank: content.symmetric_part(), SYMMETRIC_F),
    "symmetric_naive": not_centred(lambda heads, content, rank: content.symmetric_part(), SYMMETRIC_F),
    "rank": Replacement(low_rank_content, Message("the best approximation of F of rank {rank}", rank=0)),
}
"""Replacements of F by name."""


def find_replacement(name: str, table: dict[str, Replacement], operator: str) -> Replacement:
    """A replacement by its name. A rank follows its name, as in 'rank 8', 'rank:8' or 'rank=8'."""
    rank_match = re.fullmatch(r"rank[ :=](\d+)", name)
    if rank_match:
        rank, low_rank = int(rank_match[1]), table["rank"]
        assert isinstance(low_rank.description, Message)
        return replace(low_rank, rank=rank, description=Message(low_rank.description.template, rank=rank))
    if name == "rank" or name not in table:
        raise RheoscopeError(
            Message(
                "unknown replacement of {operator}: {received!r}, expected one of {names}",
                operator=operator,
                received=name,
                names=", ".join("'rank 8'" if option == "rank" else option for option in table),
            ),
            use(**{operator: "symmetric"}),
        )
    return table[name]


def _check_rank(rank: int, max_rank: int, operator: str) -> None:
    if not 1 <= rank <= max_rank:
        raise RheoscopeError(
            Message(
                "the rank of {operator} must lie between 1 and {high} in this model, got {received}",
                operator=operator,
                high=max_rank,
                received=rank,
            ),
            use(**{operator: f"rank {max_rank}"}),
        )
