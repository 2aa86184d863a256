"""Pairs of tokens of many texts, all or sampled, and the ranks of their distances."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.space.masked_means import ValidTokens
from rheoscope.space.pair_distances import distance_from_products
from rheoscope.statistics.ranks import unit_ranks


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of tokens (i, j), equally many for every text. `is_valid` marks the valid pairs; None means that all are valid.

    `n_tokens` is the number of tokens per text. `sampling_factor` is None if these are all pairs. For sampled pairs it is the
    number of all pairs divided by the number of samples minus 1.
    """

    i: Int[Tensor, "b pairs"]
    j: Int[Tensor, "b pairs"]
    n_tokens: Float[Tensor, " b"]
    is_valid: Bool[Tensor, "b pairs"] | None = None
    sampling_factor: Float[Tensor, " b"] | None = None

    def take_from(self, table: Float[Tensor, "b n n"]) -> Float[Tensor, "b pairs"]:
        """The entries of a table for these pairs."""
        return table.flatten(1).gather(1, self.i * table.shape[-1] + self.j)

    def distances_from_inner(self, inner: Float[Tensor, "b n n"]) -> Float[Tensor, "b pairs"]:
        """The distances of these pairs from inner products, without a table of all distances."""
        length = inner.diagonal(dim1=-2, dim2=-1)
        return distance_from_products(length.gather(1, self.i) + length.gather(1, self.j), self.take_from(inner))

    def distance_ranks(self, distance: Float[Tensor, "p b pairs"]) -> Float[Tensor, "p b pairs"]:
        """The ranks of the distances, centred and normalised, so that an inner product is a Spearman correlation."""
        return unit_ranks(distance, None if self.is_valid is None else self.is_valid.expand(distance.shape))

    def mantel_moments(self, ranks: Float[Tensor, "p b pairs"], n: int) -> Float[Tensor, "p b 2"]:
        """Σ_{i≠j} a_ij² and Σ a_ij a_il over distinct i, j, l, the moments of the rank table that Mantel's null needs.

        For sampled pairs the second estimate is made unbiased by removing the products of a pair with itself.
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
    """All pairs i < j of valid tokens."""
    b, n, _ = table.shape
    i, j = torch.triu_indices(n, n, 1, device=table.device)
    valid_pairs = None if valid is None else valid[:, i] & valid[:, j]
    return Pairs(i.expand(b, -1), j.expand(b, -1), _token_counts(table, valid), valid_pairs)


def sample_pairs(table: Float[Tensor, "b n n"], valid: ValidTokens, n_pairs: int, seed: int) -> Pairs:
    """Pairs of valid tokens, sampled with replacement. Texts of equal length get the same pairs."""
    n_tokens = _token_counts(table, valid)
    uniform_i, uniform_j = torch.rand(
        2, n_pairs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(table.device)
    i, j = ((u * count).long() for u, count in ((uniform_i, n_tokens[:, None]), (uniform_j, n_tokens[:, None] - 1)))
    j = j + (j >= i)
    if valid is not None:
        positions = (~valid).to(torch.uint8).argsort(dim=-1, stable=True)  # valid tokens first
        i, j = positions.gather(1, i), positions.gather(1, j)
    return Pairs(i, j, n_tokens, sampling_factor=n_tokens * (n_tokens - 1) / 2 / (n_pairs - 1))


def sampling_se(rsa: Tensor, n_pairs: int) -> Tensor:
    """Standard error of a Spearman correlation from sampled pairs (Bonett and Wright 2000, on the scale of r)."""
    return (1 - rsa.square()) * ((1 + rsa.square() / 2) / (n_pairs - 3)) ** 0.5


def _token_counts(table: Float[Tensor, "b n n"], valid: ValidTokens) -> Float[Tensor, " b"]:
    count = table.new_full((len(table),), table.shape[-1]) if valid is None else valid.sum(-1)
    return count.double()
