"""The geometry of a cloud (distances, ranks, neighbours, inner products) and how well an image preserves it."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.space.pair_distances import distances_between
from rheoscope.statistics.ranks import centred_ranks, stable_argsort, unit_ranks

PRESERVATION_FIELDS = ("spread", "neighbours", "trustworthiness", "continuity", "rsa", "cka")
MAX_PAIRS_AT_ONCE = 2**19
"""The number of pairs of tokens that are compared at once."""
STRETCH_QUANTILES = (0.05, 0.95)
"""The ratio of these quantiles of the stretch of pairs is `spread`."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """The geometry of a cloud of n tokens, measured from m of them (`rows`). Leading axes hold several clouds.

    `pair_distances` are the distances of all pairs that contain one of the rows. `pair_ranks` are their ranks, centred and
    scaled to length 1. `neighbour_ranks[i, j]` is the number of tokens closer to row i than token j, where ties go to the
    earlier token. `inner_products` are centred and scaled to norm 1. `x` is the centred cloud.
    """

    rows: Int[Tensor, " m"]
    pair_distances: Float[Tensor, "*t p"]
    pair_ranks: Float[Tensor, "*t p"]
    neighbour_ranks: Float[Tensor, "*t m n"]
    inner_products: Float[Tensor, "*t m n"]
    x: Float[Tensor, "*t n d"]


def geometry(x: Float[Tensor, "*t n d"], rows: Int[Tensor, " m"] | None = None) -> Geometry:
    """The geometry of one or several clouds, in float64.

    >>> geometry(torch.tensor([[0.0], [1.0], [3.0]])).pair_distances.tolist()
    [1.0, 3.0, 2.0]
    """
    x = x.double()
    rows = torch.arange(x.shape[-2], device=x.device) if rows is None else rows
    x = x - x.mean(-2, keepdim=True)
    inner_products = x[..., rows, :] @ x.mT
    squared_lengths = x.square().sum(-1)
    distances = distances_between(inner_products, squared_lengths[..., rows], squared_lengths)
    pair_distances = distances[..., pairs_with_rows(rows, x.shape[-2])]
    return Geometry(
        rows,
        pair_distances,
        unit_ranks(pair_distances),
        _neighbour_ranks(distances, rows),
        _normalise(inner_products),
        x,
    )


def pairs_with_rows(rows: Int[Tensor, " m"], n: int) -> Bool[Tensor, "m n"]:
    """A mask of all pairs that contain one of the rows, each pair once.

    >>> pairs_with_rows(torch.tensor([0, 2]), 3).tolist()
    [[False, True, True], [False, True, False]]
    """
    token_indices = torch.arange(n, device=rows.device)
    is_row = torch.zeros(n, dtype=torch.bool, device=rows.device).index_fill(0, rows, True)
    return ~is_row | (token_indices > rows[:, None])


def rsa_standard_error(reference: Geometry, image: Geometry) -> Float[Tensor, "*t"]:
    """The standard error of the `rsa` of an image if only some rows are sampled; 0 for all rows.

    **Formula** The correlation of unit ranks a and b is the sum over rows of Σ_j a_j b_j. The influence of a row is
    Σ_j a_j b_j − ρ (a_j² + b_j²)/2. For m of n rows drawn without replacement, the variance is
    m/(m − 1) (1 − m/n) Σ influence².
    """
    m, n = reference.neighbour_ranks.shape[-2:]
    if m == n:
        return image.pair_ranks.new_zeros(image.pair_ranks.shape[:-1])
    row_of_pair = torch.arange(m, device=reference.rows.device)[:, None].expand(m, n)[
        pairs_with_rows(reference.rows, n)
    ]
    ranks = image.pair_ranks
    rho = (ranks @ reference.pair_ranks)[..., None]
    influence = ranks * reference.pair_ranks - rho * (ranks.square() + reference.pair_ranks.square()) / 2
    row_influence = ranks.new_zeros(*ranks.shape[:-1], m).index_add_(-1, row_of_pair, influence)
    return (row_influence.square().sum(-1) * m / (m - 1) * (1 - m / n)).sqrt()


def compare_geometries(reference: Geometry, image: Geometry, n_neighbours: int) -> Float[Tensor, "*t 6"]:
    """How well an image preserves a cloud: the scores of `PRESERVATION_FIELDS`, in that order."""
    is_shared = (reference.neighbour_ranks < n_neighbours) & (image.neighbour_ranks < n_neighbours)
    return torch.stack([
        stretch_ratio(reference, image),
        is_shared.sum((-2, -1)) / (n_neighbours * len(reference.rows)),
        1 - intruder_penalty(reference, image, n_neighbours),
        1 - intruder_penalty(image, reference, n_neighbours),
        image.pair_ranks @ reference.pair_ranks,
        (reference.inner_products * image.inner_products).sum((-2, -1)),
    ], -1)  # fmt: skip


def stretch_ratio(reference: Geometry, image: Geometry) -> Float[Tensor, "*t"]:
    """The ratio of the 95 % and 5 % quantiles of the stretch of pairs.

    It is 1 for an isometry up to scale, and infinite if more than 5 % of the pairs collapse.
    """
    is_distinct = reference.pair_distances > 1e-12 * reference.pair_distances.max()
    stretch = image.pair_distances[..., is_distinct] / reference.pair_distances[is_distinct]
    n = stretch.shape[-1]
    if not n:
        return torch.full_like(image.pair_distances[..., 0], float("nan"))
    low, high = (stretch.kthvalue(1 + round(quantile * (n - 1)), -1).values for quantile in STRETCH_QUANTILES)
    return high / low


def intruder_penalty(reference: Geometry, image: Geometry, k: int) -> Float[Tensor, "*t"]:
    """The rank penalty, in the reference, of tokens that become neighbours in the image; 0 for none, 1 at most."""
    m, n = reference.neighbour_ranks.shape[-2:]
    excess_ranks = torch.where(image.neighbour_ranks < k, (reference.neighbour_ranks - k + 1).clamp(min=0), 0).sum(
        (-2, -1)
    )
    return excess_ranks * 2 / (m * k * (2 * n - 3 * k - 1))


def _neighbour_ranks(distance: Float[Tensor, "*t m n"], rows: Int[Tensor, " m"]) -> Float[Tensor, "*t m n"]:
    """The number of tokens closer to a row. Ties go to the earlier token, and the row itself comes last."""
    n = distance.shape[-1]
    is_other = torch.arange(n, device=rows.device) != rows[:, None]
    ranks = centred_ranks(distance, is_other)
    neighbour_ranks = torch.where(is_other, ranks + (n - 2) / 2, n - 1)
    has_ties = ranks.square().sum(-1) < (n - 2) * (n - 1) * n / 12 - 0.25  # tied ranks have a smaller sum of squares
    if bool(has_ties.any()):
        token_indices = torch.arange(n, dtype=torch.float64, device=distance.device)
        distinct_ranks = neighbour_ranks[has_ties] + token_indices / (4 * n)  # ranks are multiples of 1/2
        neighbour_ranks[has_ties] = torch.empty_like(distinct_ranks).scatter_(
            -1, stable_argsort(distinct_ranks), token_indices.expand_as(distinct_ranks)
        )
    return neighbour_ranks


def _normalise(x: Float[Tensor, "*t m n"]) -> Float[Tensor, "*t m n"]:
    """Matrices scaled to norm 1. Zero stays zero."""
    norm = x.norm(dim=(-2, -1), keepdim=True)
    return torch.where(norm > 0, x / torch.where(norm > 0, norm, 1), 0)
