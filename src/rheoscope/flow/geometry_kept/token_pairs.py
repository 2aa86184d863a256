"""Pairs of tokens of many texts, all of them or some drawn at random, and the ranks of their distances."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.space.masked_means import ValidTokens
from rheoscope.space.pair_distances import distance_from_products
from rheoscope.statistics.ranks import unit_ranks


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of tokens (i, j), the same number of every text: `usable` says which are there, None that all are.

    `tokens` is how many tokens a text has. `of_all` is None where these are all pairs, else what their number is to that of pairs of
    those drawn.
    """

    i: Int[Tensor, "b pairs"]
    j: Int[Tensor, "b pairs"]
    n_tokens: Float[Tensor, " b"]
    is_valid: Bool[Tensor, "b pairs"] | None = None
    sampling_factor: Float[Tensor, " b"] | None = None

    def take_from(self, table: Float[Tensor, "b n n"]) -> Float[Tensor, "b pairs"]:
        """What a table holds of these pairs."""
        return table.flatten(1).gather(1, self.i * table.shape[-1] + self.j)

    def distances_from_inner(self, inner: Float[Tensor, "b n n"]) -> Float[Tensor, "b pairs"]:
        """The same from inner products, without a table of all distances."""
        length = inner.diagonal(dim1=-2, dim2=-1)
        return distance_from_products(length.gather(1, self.i) + length.gather(1, self.j), self.take_from(inner))

    def distance_ranks(self, distance: Float[Tensor, "p b pairs"]) -> Float[Tensor, "p b pairs"]:
        """Of distances of these pairs, centred and of length 1: inner products of two are Spearman's correlation."""
        return unit_ranks(distance, None if self.is_valid is None else self.is_valid.expand(distance.shape))

    def mantel_moments(self, ranks: Float[Tensor, "p b pairs"], n: int) -> Float[Tensor, "p b 2"]:
        """Σ_{i≠j} a_ij² and Σ a_ij a_il over distinct i, j, l of the table of these ranks: all that Mantel's null needs.

        From pairs drawn at random the second is estimated without bias: that of a pair with itself is taken away.
        """
        row_sums = ranks.new_zeros(*ranks.shape[:-1], n)
        for side in (self.i, self.j):
            row_sums.scatter_add_(-1, side.expand(ranks.shape), ranks)
        squares = 2 * ranks.square().sum(-1)
        cross_sum = row_sums.square().sum(-1) - squares
        return torch.stack(
            [
                squares,
                cross_sum if self.sampling_factor is None else self.sampling_factor.to(ranks) * cross_sum - squares,
            ],
            -1,
        )


def all_pairs(table: Float[Tensor, "b n n"], valid: ValidTokens) -> Pairs:
    """All pairs i < j of tokens that count."""
    b, n, _ = table.shape
    i, j = torch.triu_indices(n, n, 1, device=table.device)
    valid_pairs = None if valid is None else valid[:, i] & valid[:, j]
    return Pairs(i.expand(b, -1), j.expand(b, -1), _token_counts(table, valid), valid_pairs)


def sample_pairs(table: Float[Tensor, "b n n"], valid: ValidTokens, n_pairs: int, seed: int) -> Pairs:
    """So many pairs of tokens that count, drawn with replacement; texts of one length have the same ones."""
    n_tokens = _token_counts(table, valid)
    uniform_i, uniform_j = torch.rand(
        2, n_pairs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(table.device)
    i, j = ((u * count).long() for u, count in ((uniform_i, n_tokens[:, None]), (uniform_j, n_tokens[:, None] - 1)))
    j = j + (j >= i)
    if valid is not None:
        positions = (~valid).to(torch.uint8).argsort(dim=-1, stable=True)  # those that count first
        i, j = positions.gather(1, i), positions.gather(1, j)
    return Pairs(i, j, n_tokens, sampling_factor=n_tokens * (n_tokens - 1) / 2 / (n_pairs - 1))


def sampling_se(rsa: Tensor, n_pairs: int) -> Tensor:
    """Standard error of Spearman's correlation of so many pairs drawn at random (Bonett and Wright 2000, on the scale of r)."""
    return (1 - rsa.square()) * ((1 + rsa.square() / 2) / (n_pairs - 3)) ** 0.5


def _token_counts(table: Float[Tensor, "b n n"], valid: ValidTokens) -> Float[Tensor, " b"]:
    count = table.new_full((len(table),), table.shape[-1]) if valid is None else valid.sum(-1)
    return count.double()
