"""Pairs of tokens of many texts, all of them or some drawn at random, and the ranks of their distances."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.space.masked_means import There
from rheoscope.space.pair_distances import apart
from rheoscope.statistics.ranks import unit_ranks


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of tokens (i, j), the same number of every text: `usable` says which are there, None that all are.

    `tokens` is how many tokens a text has. `of_all` is None where these are all pairs, else what their number is to that of pairs of
    those drawn.
    """

    i: Int[Tensor, "b pairs"]
    j: Int[Tensor, "b pairs"]
    tokens: Float[Tensor, " b"]
    usable: Bool[Tensor, "b pairs"] | None = None
    of_all: Float[Tensor, " b"] | None = None

    def of(self, table: Float[Tensor, "b n n"]) -> Float[Tensor, "b pairs"]:
        """What a table holds of these pairs."""
        return table.flatten(1).gather(1, self.i * table.shape[-1] + self.j)

    def from_inner(self, inner: Float[Tensor, "b n n"]) -> Float[Tensor, "b pairs"]:
        """The same from inner products, without a table of all distances."""
        length = inner.diagonal(dim1=-2, dim2=-1)
        return apart(length.gather(1, self.i) + length.gather(1, self.j), self.of(inner))

    def ranks(self, far: Float[Tensor, "p b pairs"]) -> Float[Tensor, "p b pairs"]:
        """Of distances of these pairs, centred and of length 1: inner products of two are Spearman's correlation."""
        return unit_ranks(far, None if self.usable is None else self.usable.expand(far.shape))

    def pulls(self, rank: Float[Tensor, "p b pairs"], n: int) -> Float[Tensor, "p b 2"]:
        """Σ_{i≠j} a_ij² and Σ a_ij a_il over distinct i, j, l of the table of these ranks: all that Mantel's null needs.

        From pairs drawn at random the second is estimated without bias: that of a pair with itself is taken away.
        """
        rows = rank.new_zeros(*rank.shape[:-1], n)
        for end in (self.i, self.j):
            rows.scatter_add_(-1, end.expand(rank.shape), rank)
        squares = 2 * rank.square().sum(-1)
        apart = rows.square().sum(-1) - squares
        return torch.stack([squares, apart if self.of_all is None else self.of_all.to(rank) * apart - squares], -1)


def every_pair(far: Float[Tensor, "b n n"], there: There) -> Pairs:
    """All pairs i < j of tokens that count."""
    b, n, _ = far.shape
    i, j = torch.triu_indices(n, n, 1, device=far.device)
    usable = None if there is None else there[:, i] & there[:, j]
    return Pairs(i.expand(b, -1), j.expand(b, -1), _tokens(far, there), usable)


def drawn_pairs(far: Float[Tensor, "b n n"], there: There, pairs: int, seed: int) -> Pairs:
    """So many pairs of tokens that count, drawn with replacement; texts of one length have the same ones."""
    tokens = _tokens(far, there)
    one, other = torch.rand(2, pairs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(far.device)
    i, j = ((u * count).long() for u, count in ((one, tokens[:, None]), (other, tokens[:, None] - 1)))
    j = j + (j >= i)
    if there is not None:
        places = (~there).to(torch.uint8).argsort(dim=-1, stable=True)  # those that count first
        i, j = places.gather(1, i), places.gather(1, j)
    return Pairs(i, j, tokens, of_all=tokens * (tokens - 1) / 2 / (pairs - 1))


def sampling_error(rsa: Tensor, pairs: int) -> Tensor:
    """Standard error of Spearman's correlation of so many pairs drawn at random (Bonett and Wright 2000, on the scale of r)."""
    return (1 - rsa.square()) * ((1 + rsa.square() / 2) / (pairs - 3)) ** 0.5


def _tokens(far: Float[Tensor, "b n n"], there: There) -> Float[Tensor, " b"]:
    count = far.new_full((len(far),), far.shape[-1]) if there is None else there.sum(-1)
    return count.double()
