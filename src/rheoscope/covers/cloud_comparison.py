"""The geometry of a cloud as numbers that two clouds can be compared by: distances, their ranks, neighbours, inner products."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.covers.image_geometry import batch_preservation
from rheoscope.space.pair_distances import distances_between
from rheoscope.statistics.ranks import centred_ranks, stable_argsort, unit_ranks

PRESERVATION_FIELDS = ("spread", "neighbours", "trustworthiness", "continuity", "rsa", "cka")
MAX_PAIRS_AT_ONCE = 2**19
"""Pairs of tokens of the images that are looked at together."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """One cloud of n tokens, seen from m of its tokens (`rows`, all of them by default); leading axes are those of many clouds.

    `pairs` are the distances of all pairs that one of the rows is in, `ranks` their ranks, centred and of length 1; `order[i, j]`
    says how many tokens are nearer to row i than j (of equally near ones the earlier counts as nearer); `inner` are the inner
    products around the mean of rows and tokens, of length 1; `x` are the tokens themselves, around their mean.
    """

    rows: Int[Tensor, " m"]
    pair_distances: Float[Tensor, "*t p"]
    pair_ranks: Float[Tensor, "*t p"]
    neighbour_ranks: Float[Tensor, "*t m n"]
    inner_products: Float[Tensor, "*t m n"]
    x: Float[Tensor, "*t n d"]


def geometry(x: Float[Tensor, "*t n d"], rows: Int[Tensor, " m"] | None = None) -> Geometry:
    """The geometry of a cloud, or of many, in float64.

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
    """Every pair that one of the rows is in, once.

    >>> pairs_with_rows(torch.tensor([0, 2]), 3).tolist()
    [[False, True, True], [False, True, False]]
    """
    token_indices = torch.arange(n, device=rows.device)
    is_row = torch.zeros(n, dtype=torch.bool, device=rows.device).index_fill(0, rows, True)
    return ~is_row | (token_indices > rows[:, None])


def preservation(reference: Geometry, clouds: Float[Tensor, "*t n e"], nearest: int) -> Float[Tensor, "*t 6"]:
    """What each of many images keeps of a cloud, some images at a time: the numbers of COMPARED."""
    if clouds.is_cuda and reference.neighbour_ranks.shape[-2] == reference.neighbour_ranks.shape[-1]:
        is_included = torch.ones_like(reference.rows, dtype=torch.bool)[None]
        return batch_preservation(reference.x[None], is_included, clouds.flatten(0, -3)[None], nearest)[0].unflatten(
            0, clouds.shape[:-2]
        )
    return torch.cat(
        [compare_geometries(reference, chunk, nearest) for chunk in _geometry_chunks(reference, clouds)]
    ).unflatten(0, clouds.shape[:-2])


def preservation_with_error(
    reference: Geometry, clouds: Float[Tensor, "*t n e"], nearest: int
) -> Float[Tensor, "*t 7"]:
    """The same, and behind it how far `rsa` may be off: not at all where every row is seen."""
    if reference.neighbour_ranks.shape[-2] == reference.neighbour_ranks.shape[-1]:
        return torch.nn.functional.pad(preservation(reference, clouds, nearest), (0, 1))
    chunks = [
        torch.cat([compare_geometries(reference, image, nearest), rsa_standard_error(reference, image)[:, None]], -1)
        for image in _geometry_chunks(reference, clouds)
    ]
    return torch.cat(chunks).unflatten(0, clouds.shape[:-2])


def _geometry_chunks(reference: Geometry, clouds: Float[Tensor, "*t n e"]) -> Iterator[Geometry]:
    for chunk in clouds.flatten(0, -3).split(max(1, MAX_PAIRS_AT_ONCE // reference.neighbour_ranks.numel())):
        yield geometry(chunk, reference.rows)


def rsa_standard_error(reference: Geometry, image: Geometry) -> Float[Tensor, "*t"]:
    """How far the `rsa` of an image may be off because only some rows were looked at: its standard error, 0 for all rows.

    **Formula** a correlation of unit ranks a, b is a sum over rows of Σ_j a_j b_j; by its influence, Σ_j a_j b_j − ρ (a_j² + b_j²)/2,
    rows vary around the whole, and m of n are drawn without replacement: variance m/(m − 1) (1 − m/n) Σ influence².
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


def compare_geometries(reference: Geometry, image: Geometry, nearest: int) -> Float[Tensor, "*t 6"]:
    """What an image keeps of a cloud: the numbers of COMPARED, in that order."""
    is_shared = (reference.neighbour_ranks < nearest) & (image.neighbour_ranks < nearest)
    return torch.stack([
        stretch_ratio(reference, image),
        is_shared.sum((-2, -1)) / (nearest * len(reference.rows)),
        1 - intruder_penalty(reference, image, nearest),
        1 - intruder_penalty(image, reference, nearest),
        image.pair_ranks @ reference.pair_ranks,
        (reference.inner_products * image.inner_products).sum((-2, -1)),
    ], -1)  # fmt: skip


def stretch_ratio(reference: Geometry, image: Geometry) -> Float[Tensor, "*t"]:
    """r₉₅/r₀₅ of the stretch of pairs: 1 for an isometry up to scale, infinite where more than 5 % collapse."""
    is_distinct = reference.pair_distances > 1e-12 * reference.pair_distances.max()
    stretch = image.pair_distances[..., is_distinct] / reference.pair_distances[is_distinct]
    n = stretch.shape[-1]
    if not n:
        return torch.full_like(image.pair_distances[..., 0], float("nan"))
    low, high = (stretch.kthvalue(1 + round(quantile * (n - 1)), -1).values for quantile in (0.05, 0.95))
    return high / low


def intruder_penalty(reference: Geometry, image: Geometry, k: int) -> Float[Tensor, "*t"]:
    """How far those are, in `of`, that became neighbours in `image`: 0 none, 1 the farthest ones everywhere."""
    m, n = reference.neighbour_ranks.shape[-2:]
    excess_ranks = torch.where(image.neighbour_ranks < k, (reference.neighbour_ranks - k + 1).clamp(min=0), 0).sum(
        (-2, -1)
    )
    return excess_ranks * 2 / (m * k * (2 * n - 3 * k - 1))


def _neighbour_ranks(distance: Float[Tensor, "*t m n"], rows: Int[Tensor, " m"]) -> Float[Tensor, "*t m n"]:
    """How many tokens are nearer to a row, of equally near ones the earlier; a token itself comes last."""
    n = distance.shape[-1]
    is_other = torch.arange(n, device=rows.device) != rows[:, None]
    ranks = centred_ranks(distance, is_other)
    neighbour_ranks = torch.where(is_other, ranks + (n - 2) / 2, n - 1)
    has_ties = ranks.square().sum(-1) < (n - 2) * (n - 1) * n / 12 - 0.25  # equal ranks are nearer to their mean
    if bool(has_ties.any()):
        token_indices = torch.arange(n, dtype=torch.float64, device=distance.device)
        distinct_ranks = neighbour_ranks[has_ties] + token_indices / (4 * n)  # ranks are halves apart
        neighbour_ranks[has_ties] = torch.empty_like(distinct_ranks).scatter_(
            -1, stable_argsort(distinct_ranks), token_indices.expand_as(distinct_ranks)
        )
    return neighbour_ranks


def _normalise(x: Float[Tensor, "*t m n"]) -> Float[Tensor, "*t m n"]:
    """Of length 1; 0 stays 0."""
    norm = x.norm(dim=(-2, -1), keepdim=True)
    return torch.where(norm > 0, x / torch.where(norm > 0, norm, 1), 0)
