"""What can stand in the place of M and of F: one small function and one line each."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rheoscope.shapes import RheoscopeError
from rheoscope.space.bilinear_form import Form, Term, at_offset, exchanged, times, transposed
from rheoscope.space.head import Heads
from rheoscope.space.operator import Factored


@dataclass(frozen=True)
class Replacement:
    """From the heads of a layer, their own M or F and a rank (0 where the name has none) to what stands in its place.

    `centred`: the operator is replaced between tokens less the mean of their cloud, and what the mean does stays; else
    between the tokens themselves, so that what the mean asks for is changed with it.
    """

    make: Callable[[Heads, Any, int], Any]
    says: str
    centred: bool = True
    rank: int = 0


def symmetric(heads: Heads, own: Form, rank: int) -> Form:
    return times(own, 0.5) + times(transposed(own), 0.5)


def symmetric_scores(heads: Heads, own: Form, rank: int) -> Form:
    return times(own, 0.5) + times(exchanged(own), 0.5)


def skew(heads: Heads, own: Form, rank: int) -> Form:
    return times(own, 0.5) + times(transposed(own), -0.5)


def at_zero(heads: Heads, own: Form, rank: int) -> Form:
    if not heads.mechanism.position.moves:
        return own
    return tuple(replace(term, turn="still") for term in own)


def positive(heads: Heads, own: Form, rank: int) -> Form:
    if heads.mechanism.position.moves:
        raise RheoscopeError(
            "under RoPE M is another form at every offset, so it has no one positive part; type M='symmetric' or M='at_zero'"
        )
    part = at_offset(heads, own, 0).positive()
    return (Term(part.left, part.right.mT),)


def of_rank(heads: Heads, own: Form, rank: int) -> Form:
    """Both sides projected on the leading singular vectors of M(0): its best copy of that rank, and of that rank at any δ."""
    (whole,) = own
    _checked(rank, whole.left.shape[-1], "M")
    u, _, vh = at_offset(heads, own, 0).svd()
    u, v = u[..., :rank], vh[..., :rank, :].mT
    return (Term(u @ (u.mT @ whole.left), v @ (v.mT @ whole.right)),)


def content_of_rank(heads: Heads, own: Factored, rank: int) -> Factored:
    _checked(rank, own.left.shape[-1], "F")
    return own.rank(rank)


RELEVANCE: dict[str, Replacement] = {
    "identity": Replacement(lambda heads, own, rank: own, "M(δ) as it is"),
    "symmetric": Replacement(symmetric, "½(M(δ) + M(δ)ᵀ)"),
    "symmetric_naive": Replacement(symmetric, "½(M(δ) + M(δ)ᵀ), not centred", centred=False),
    "symmetric_scores": Replacement(symmetric_scores, "½(M(δ) + M(−δ)ᵀ): scores of a pair alike both ways"),
    "symmetric_scores_naive": Replacement(symmetric_scores, "½(M(δ) + M(−δ)ᵀ), not centred", centred=False),
    "skew": Replacement(skew, "½(M(δ) − M(δ)ᵀ)"),
    "skew_naive": Replacement(skew, "½(M(δ) − M(δ)ᵀ), not centred", centred=False),
    "at_zero": Replacement(at_zero, "M(0) at every offset"),
    "positive": Replacement(positive, "the positive part of ½(M + Mᵀ), without RoPE"),
    "rank": Replacement(of_rank, "M(δ) at rank {}, on the leading singular vectors of M(0)"),
}
"""What stands in the place of M."""
CONTENT: dict[str, Replacement] = {
    "identity": Replacement(lambda heads, own, rank: own, "F as it is"),
    "symmetric": Replacement(lambda heads, own, rank: own.symmetric(), "½(F + Fᵀ)"),
    "symmetric_naive": Replacement(lambda heads, own, rank: own.symmetric(), "½(F + Fᵀ), not centred", centred=False),
    "rank": Replacement(content_of_rank, "the best copy of F of rank {}"),
}
"""What stands in the place of F."""


def named(name: str, table: dict[str, Replacement], what: str) -> Replacement:
    """A replacement by its name; 'rank 8' (or rank:8) has its rank behind it."""
    found = re.fullmatch(r"rank[ :=](\d+)", name)
    if found:
        return replace(table["rank"], rank=int(found[1]), says=table["rank"].says.format(found[1]))
    if name == "rank" or name not in table:
        known = ", ".join("'rank 8'" if one == "rank" else one for one in table)
        raise RheoscopeError(f"unknown replacement of {what}: {name!r}; type one of {known}")
    return table[name]


def _checked(rank: int, most: int, what: str) -> None:
    if not 1 <= rank <= most:
        raise RheoscopeError(
            f"the rank of {what} lies in 1 to {most} in this model, got {rank}; type {what}='rank {most}'"
        )
