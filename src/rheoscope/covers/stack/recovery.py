"""How well images recover the distances of a cloud, from squared distances of pairs, which add up over the heads of an image."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.covers.operator_images import OperatorImage
from rheoscope.space.operator import RANK_TOLERANCE
from rheoscope.space.pair_distances import centred_inner_products, distance_rounding, upper_triangle
from rheoscope.space.safe_arithmetic import safe_divide
from rheoscope.statistics.ranks import rank_correlations, unit_ranks

Pairs = Float[Tensor, "*t p"]
MIN_PIVOT = 1e-3
"""A direction of a head is new if this much of it, or more, lies outside the space of earlier heads."""


@dataclass(frozen=True, eq=False)
class Distances:
    """Squared distances of all pairs i < j of centred clouds, and the squared length of every token. Both add up over heads."""

    pairs: Float[Tensor, "*t p"]
    lengths: Float[Tensor, "*t n"]

    def cumulative(self, order: Int[Tensor, "t h"]) -> "Distances":
        """Those of the images of the first 1, 2, … heads side by side, for every cloud."""
        clouds = torch.arange(len(order), device=order.device)[:, None]
        return Distances(self.pairs[clouds, order].cumsum(-2), self.lengths[clouds, order].cumsum(-2))


def pair_distances(x: Float[Tensor, "*t n d"]) -> Distances:
    """The distances of clouds, where rounding errors count as 0.

    >>> pair_distances(torch.tensor([[0.0], [1.0], [3.0]])).pairs.tolist()
    [1.0, 9.0, 4.0]
    """
    inner, n = centred_inner_products(x), x.shape[-2]
    lengths = inner.diagonal(dim1=-2, dim2=-1)
    i, j = torch.triu_indices(n, n, 1, device=x.device)
    length_sums = lengths.index_select(-1, i) + lengths.index_select(-1, j)
    squared = length_sums.sub(inner.flatten(-2).index_select(-1, i * n + j), alpha=2)
    return Distances(torch.where(squared > distance_rounding(x.dtype) * length_sums, squared, 0), lengths)


@dataclass(frozen=True, eq=False)
class Cloud:
    """What images are compared with: the ranks of its distances, and its inner products, both of pairs i < j and scaled to norm 1."""

    pair_ranks: Float[Tensor, " p"]
    pair_products: Float[Tensor, " p"]

    def rsa(self, pairs: Pairs) -> Float[Tensor, "*t"]:
        """Spearman correlation of distances."""
        return rank_correlations(pairs, self.pair_ranks)

    def cka(self, image: Distances) -> Float[Tensor, "*t"]:
        """The cosine of inner products, linear CKA.

        **Formula** The rows of the cloud's inner products G sum to 0, so ⟨G, G'⟩ = −½⟨G, D'⟩ for squared distances D'. For centred
        points of squared lengths s, ‖G'‖² = ½(Σ_{i<j} D'² − n Σ s² − (Σ s)²).
        """
        n, total = image.lengths.shape[-1], image.lengths.sum(-1)
        squared_norm = image.pairs.square().sum(-1) - n * image.lengths.square().sum(-1) - total.square()
        return safe_divide(-(image.pairs @ self.pair_products), (squared_norm / 2).clamp(min=0).sqrt())


def compared_cloud(x: Float[Tensor, "n d"]) -> Cloud:
    """A cloud that images are compared with."""
    inner = centred_inner_products(x)
    products = upper_triangle(inner)
    return Cloud(unit_ranks(pair_distances(x).pairs), products / inner.norm().clamp(min=torch.finfo(x.dtype).tiny))


def greedy_order(pairs: Float[Tensor, "t h p"], cloud: Cloud) -> tuple[Int[Tensor, "t h"], Float[Tensor, "t h"]]:
    """The greedy order of the heads, and the correlation after each of them, for many clouds at once."""
    n_clouds, n_heads, _ = pairs.shape
    clouds = torch.arange(n_clouds, device=pairs.device)[:, None]
    remaining_heads, order, recovered = torch.arange(n_heads, device=pairs.device).expand(n_clouds, -1), [], []
    current = torch.zeros_like(pairs[:, :1])
    for _ in range(n_heads):
        candidates = current + pairs[clouds, remaining_heads]
        correlations = cloud.rsa(candidates)
        best = correlations.argmax(1, keepdim=True)
        order.append(remaining_heads.gather(1, best))
        recovered.append(correlations.gather(1, best))
        current = candidates[clouds, best]
        remaining_heads = remaining_heads[remaining_heads != order[-1]].unflatten(0, (n_clouds, -1))
    return torch.cat(order, 1), torch.cat(recovered, 1)


def greedy_recovery(
    cloud: Cloud, clouds: Float[Tensor, "t n d"], head_image: OperatorImage
) -> dict[str, Float[Tensor, "t h"]]:
    """The part of one cloud that the first 1, 2, … heads recover from other clouds, in greedy order."""
    projections = head_image.project(clouds)
    image = pair_distances(projections * head_image.singular_values[:, None])
    order, recovered = greedy_order(image.pairs, cloud)
    return {
        "recovered": recovered,
        "recovered_orthonormal": cloud.rsa(pair_distances(projections).cumulative(order).pairs),
        "recovered_cka": cloud.cka(image.cumulative(order)),
        "head_order": order,
    }


def union_ranks(basis: Float[Tensor, "h d r"], gram: Float[Tensor, "hr hr"] | None = None) -> Float[Tensor, " h"]:
    """The rank of the joint space of the first 1, 2, …, h heads, from their orthonormal bases and all inner products of these."""
    n_heads, rank = len(basis), basis.shape[-1]
    columns = basis.transpose(0, 1).flatten(1)
    n_independent, inverse = _independent_heads(columns.mT @ columns if gram is None else gram, rank)
    union_basis, ranks = columns[:, : n_independent * rank] @ inverse, [rank * (i + 1) for i in range(n_independent)]
    for head in range(n_independent, n_heads):
        residual = basis[head] - union_basis @ (union_basis.mT @ basis[head])
        new_directions, singular_values, _ = torch.linalg.svd(
            residual - union_basis @ (union_basis.mT @ residual), full_matrices=False
        )
        union_basis = torch.cat([union_basis, new_directions[:, singular_values > RANK_TOLERANCE]], -1)
        ranks.append(union_basis.shape[-1])
    return torch.tensor(ranks, dtype=torch.float64, device=basis.device)


def _independent_heads(gram: Float[Tensor, "hr hr"], rank: int) -> tuple[int, Float[Tensor, "m m"]]:
    """The number of leading heads whose directions are all clearly new, and a matrix that makes them orthonormal."""
    root, failed = torch.linalg.cholesky_ex(gram, upper=True)
    n_columns = int(failed) - 1 if failed else len(gram)
    is_new = root.diagonal()[: n_columns // rank * rank].unflatten(0, (-1, rank)).amin(-1) > MIN_PIVOT
    n_heads = int(is_new.cumprod(0).sum())
    leading = gram[: n_heads * rank, : n_heads * rank]
    root = torch.linalg.cholesky(leading, upper=True)
    return n_heads, torch.linalg.solve_triangular(root, torch.eye(len(root)).to(root), upper=True)
