"""The geometry of a cloud as numbers that two clouds can be compared by: distances, their ranks, neighbours, inner products."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.covers.image_geometry import kept_by_images
from rheoscope.space.pair_distances import distances_between
from rheoscope.statistics.ranks import ordered, ranked, unit_ranks

COMPARED = ("spread", "neighbours", "trustworthiness", "continuity", "rsa", "cka")
AT_ONCE = 2**19
"""Pairs of tokens of the images that are looked at together."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """One cloud of n tokens, seen from m of its tokens (`rows`, all of them by default); leading axes are those of many clouds.

    `pairs` are the distances of all pairs that one of the rows is in, `ranks` their ranks, centred and of length 1; `order[i, j]`
    says how many tokens are nearer to row i than j (of equally near ones the earlier counts as nearer); `inner` are the inner
    products around the mean of rows and tokens, of length 1; `x` are the tokens themselves, around their mean.
    """

    rows: Int[Tensor, " m"]
    pairs: Float[Tensor, "*t p"]
    ranks: Float[Tensor, "*t p"]
    order: Float[Tensor, "*t m n"]
    inner: Float[Tensor, "*t m n"]
    x: Float[Tensor, "*t n d"]


def geometry(x: Float[Tensor, "*t n d"], rows: Int[Tensor, " m"] | None = None) -> Geometry:
    """The geometry of a cloud, or of many, in float64.

    >>> geometry(torch.tensor([[0.0], [1.0], [3.0]])).pairs.tolist()
    [1.0, 3.0, 2.0]
    """
    x = x.double()
    rows = torch.arange(x.shape[-2], device=x.device) if rows is None else rows
    x = x - x.mean(-2, keepdim=True)
    inner = x[..., rows, :] @ x.mT
    length = x.square().sum(-1)
    distance = distances_between(inner, length[..., rows], length)
    pairs = distance[..., pairs_of(rows, x.shape[-2])]
    return Geometry(rows, pairs, unit_ranks(pairs), _order(distance, rows), _unit(inner), x)


def pairs_of(rows: Int[Tensor, " m"], n: int) -> Bool[Tensor, "m n"]:
    """Every pair that one of the rows is in, once.

    >>> pairs_of(torch.tensor([0, 2]), 3).tolist()
    [[False, True, True], [False, True, False]]
    """
    places = torch.arange(n, device=rows.device)
    chosen = torch.zeros(n, dtype=torch.bool, device=rows.device).index_fill(0, rows, True)
    return ~chosen | (places > rows[:, None])


def kept(of: Geometry, clouds: Float[Tensor, "*t n e"], nearest: int) -> Float[Tensor, "*t 6"]:
    """What each of many images keeps of a cloud, some images at a time: the numbers of COMPARED."""
    if clouds.is_cuda and of.order.shape[-2] == of.order.shape[-1]:
        there = torch.ones_like(of.rows, dtype=torch.bool)[None]
        return kept_by_images(of.x[None], there, clouds.flatten(0, -3)[None], nearest)[0].unflatten(
            0, clouds.shape[:-2]
        )
    return torch.cat([compared(of, some, nearest) for some in _parts(of, clouds)]).unflatten(0, clouds.shape[:-2])


def kept_with_error(of: Geometry, clouds: Float[Tensor, "*t n e"], nearest: int) -> Float[Tensor, "*t 7"]:
    """The same, and behind it how far `rsa` may be off: not at all where every row is seen."""
    if of.order.shape[-2] == of.order.shape[-1]:
        return torch.nn.functional.pad(kept(of, clouds, nearest), (0, 1))
    both = [torch.cat([compared(of, x, nearest), rsa_error(of, x)[:, None]], -1) for x in _parts(of, clouds)]
    return torch.cat(both).unflatten(0, clouds.shape[:-2])


def _parts(of: Geometry, clouds: Float[Tensor, "*t n e"]) -> Iterator[Geometry]:
    for some in clouds.flatten(0, -3).split(max(1, AT_ONCE // of.order.numel())):
        yield geometry(some, of.rows)


def rsa_error(of: Geometry, image: Geometry) -> Float[Tensor, "*t"]:
    """How far the `rsa` of an image may be off because only some rows were looked at: its standard error, 0 for all rows.

    **Formula** a correlation of unit ranks a, b is a sum over rows of Σ_j a_j b_j; by its influence, Σ_j a_j b_j − ρ (a_j² + b_j²)/2,
    rows vary around the whole, and m of n are drawn without replacement: variance m/(m − 1) (1 − m/n) Σ influence².
    """
    m, n = of.order.shape[-2:]
    if m == n:
        return image.ranks.new_zeros(image.ranks.shape[:-1])
    row = torch.arange(m, device=of.rows.device)[:, None].expand(m, n)[pairs_of(of.rows, n)]
    ranks = image.ranks
    rho = (ranks @ of.ranks)[..., None]
    influence = ranks * of.ranks - rho * (ranks.square() + of.ranks.square()) / 2
    of_row = ranks.new_zeros(*ranks.shape[:-1], m).index_add_(-1, row, influence)
    return (of_row.square().sum(-1) * m / (m - 1) * (1 - m / n)).sqrt()


def compared(of: Geometry, image: Geometry, nearest: int) -> Float[Tensor, "*t 6"]:
    """What an image keeps of a cloud: the numbers of COMPARED, in that order."""
    both = (of.order < nearest) & (image.order < nearest)
    return torch.stack([
        spread(of, image),
        both.sum((-2, -1)) / (nearest * len(of.rows)),
        1 - intruders(of, image, nearest),
        1 - intruders(image, of, nearest),
        image.ranks @ of.ranks,
        (of.inner * image.inner).sum((-2, -1)),
    ], -1)  # fmt: skip


def spread(of: Geometry, image: Geometry) -> Float[Tensor, "*t"]:
    """r₉₅/r₀₅ of the stretch of pairs: 1 for an isometry up to scale, infinite where more than 5 % collapse."""
    apart = of.pairs > 1e-12 * of.pairs.max()
    stretch = image.pairs[..., apart] / of.pairs[apart]
    n = stretch.shape[-1]
    if not n:
        return torch.full_like(image.pairs[..., 0], float("nan"))
    low, high = (stretch.kthvalue(1 + round(share * (n - 1)), -1).values for share in (0.05, 0.95))
    return high / low


def intruders(of: Geometry, image: Geometry, k: int) -> Float[Tensor, "*t"]:
    """How far those are, in `of`, that became neighbours in `image`: 0 none, 1 the farthest ones everywhere."""
    m, n = of.order.shape[-2:]
    beyond = torch.where(image.order < k, (of.order - k + 1).clamp(min=0), 0).sum((-2, -1))
    return beyond * 2 / (m * k * (2 * n - 3 * k - 1))


def _order(distance: Float[Tensor, "*t m n"], rows: Int[Tensor, " m"]) -> Float[Tensor, "*t m n"]:
    """How many tokens are nearer to a row, of equally near ones the earlier; a token itself comes last."""
    n = distance.shape[-1]
    others = torch.arange(n, device=rows.device) != rows[:, None]
    near = ranked(distance, others)
    order = torch.where(others, near + (n - 2) / 2, n - 1)
    tied = near.square().sum(-1) < (n - 2) * (n - 1) * n / 12 - 0.25  # equal ranks are nearer to their mean
    if bool(tied.any()):
        places = torch.arange(n, dtype=torch.float64, device=distance.device)
        apart = order[tied] + places / (4 * n)  # ranks are halves apart
        order[tied] = torch.empty_like(apart).scatter_(-1, ordered(apart), places.expand_as(apart))
    return order


def _unit(x: Float[Tensor, "*t m n"]) -> Float[Tensor, "*t m n"]:
    """Of length 1; 0 stays 0."""
    size = x.norm(dim=(-2, -1), keepdim=True)
    return torch.where(size > 0, x / torch.where(size > 0, size, 1), 0)
