"""The geometry of a cloud as numbers that two clouds can be compared by: distances, their ranks, neighbours, inner products."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.space.pairs import distances, inner_products, upper
from rheoscope.space.ranks import ordered, ranked, unit_ranks

COMPARED = ("spread", "neighbours", "trustworthiness", "continuity", "rsa", "cka")
AT_ONCE = 2**19
"""Pairs of tokens of the images that are looked at together."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """One cloud of n tokens, seen from inside; leading axes are those of many clouds.

    `pairs` are the distances of the n(n−1)/2 pairs, `ranks` their ranks, centred and of length 1; `order[i, j]` says how
    many tokens are nearer to i than j (of equally near ones the earlier counts as nearer); `inner` are the inner products
    around the mean, of length 1.
    """

    pairs: Float[Tensor, "*t p"]
    ranks: Float[Tensor, "*t p"]
    order: Float[Tensor, "*t n n"]
    inner: Float[Tensor, "*t n n"]


def geometry(x: Float[Tensor, "*t n d"]) -> Geometry:
    """The geometry of a cloud, or of many, in float64.

    >>> geometry(torch.tensor([[0.0], [1.0], [3.0]])).pairs.tolist()
    [1.0, 3.0, 2.0]
    """
    inner = inner_products(x.double())
    distance = distances(inner)
    pairs = upper(distance)
    return Geometry(pairs, unit_ranks(pairs), _order(distance), _unit(inner))


def kept(of: Geometry, clouds: Float[Tensor, "*t n e"], nearest: int) -> Float[Tensor, "*t 6"]:
    """What each of many images keeps of a cloud, some images at a time: the numbers of COMPARED."""
    parts = clouds.flatten(0, -3).split(max(1, AT_ONCE // len(of.order) ** 2))
    return torch.cat([compared(of, geometry(some), nearest) for some in parts]).unflatten(0, clouds.shape[:-2])


def compared(of: Geometry, image: Geometry, nearest: int) -> Float[Tensor, "*t 6"]:
    """What an image keeps of a cloud: the numbers of COMPARED, in that order."""
    both = (of.order < nearest) & (image.order < nearest)
    return torch.stack([
        spread(of, image),
        both.sum((-2, -1)) / (nearest * of.order.shape[-1]),
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
    n = of.order.shape[-1]
    beyond = torch.where(image.order < k, (of.order - k + 1).clamp(min=0), 0).sum((-2, -1))
    return beyond * 2 / (n * k * (2 * n - 3 * k - 1))


def _order(distance: Float[Tensor, "*t n n"]) -> Float[Tensor, "*t n n"]:
    """How many tokens are nearer, of equally near ones the earlier; a token itself comes last."""
    n = distance.shape[-1]
    others = ~torch.eye(n, dtype=torch.bool, device=distance.device)
    near = ranked(distance, others)
    order = torch.where(others, near + (n - 2) / 2, n - 1)
    tied = near.square().sum(-1) < (n - 2) * (n - 1) * n / 12 - 0.25  # equal ranks are nearer to their mean
    if bool(tied.any()):
        places = torch.arange(n, dtype=torch.float64, device=distance.device)
        apart = order[tied] + places / (4 * n)  # ranks are halves apart
        order[tied] = torch.empty_like(apart).scatter_(-1, ordered(apart), places.expand_as(apart))
    return order


def _unit(x: Float[Tensor, "*t n n"]) -> Float[Tensor, "*t n n"]:
    """Of length 1; 0 stays 0."""
    size = x.norm(dim=(-2, -1), keepdim=True)
    return torch.where(size > 0, x / torch.where(size > 0, size, 1), 0)
