"""The geometry of a cloud as numbers that two clouds can be compared by: distances, their ranks, neighbours, inner products."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.space.pairs import distances, inner_products, upper
from rheoscope.space.ranks import ordered, ranked, unit_ranks

COMPARED = ("spread", "neighbours", "trustworthiness", "continuity", "rsa", "cka")


@dataclass(frozen=True, eq=False)
class Geometry:
    """One cloud of n tokens, seen from inside.

    `pairs` are the distances of the n(n−1)/2 pairs, `ranks` their ranks, centred and of length 1; `order[i, j]` says how
    many tokens are nearer to i than j (of equally near ones the earlier counts as nearer); `inner` are the inner products
    around the mean, of length 1.
    """

    pairs: Float[Tensor, " p"]
    ranks: Float[Tensor, " p"]
    order: Float[Tensor, "n n"]
    inner: Float[Tensor, "n n"]


def geometry(x: Float[Tensor, "n d"]) -> Geometry:
    """The geometry of a cloud, in float64.

    >>> geometry(torch.tensor([[0.0], [1.0], [3.0]])).pairs.tolist()
    [1.0, 3.0, 2.0]
    """
    inner = inner_products(x.double())
    distance = distances(inner)
    pairs = upper(distance)
    others = ~torch.eye(len(x), dtype=torch.bool, device=x.device)
    near = ranked(distance, others).masked_fill(~others, float("inf"))
    places = torch.arange(len(x), dtype=torch.float64, device=x.device)
    near = near + places / (4 * len(x))  # ranks are halves apart: of equally near ones the earlier comes first
    order = torch.empty_like(near).scatter_(-1, ordered(near), places.expand_as(near))
    return Geometry(pairs, unit_ranks(pairs), order, _unit(inner))


def compared(of: Geometry, image: Geometry, nearest: int) -> Float[Tensor, " 6"]:
    """What an image keeps of a cloud: the numbers of COMPARED, in that order."""
    return torch.stack([
        spread(of, image),
        ((of.order < nearest) & (image.order < nearest)).sum() / (nearest * len(of.order)),
        1 - intruders(of, image, nearest),
        1 - intruders(image, of, nearest),
        (of.ranks * image.ranks).sum(),
        (of.inner * image.inner).sum(),
    ])  # fmt: skip


def spread(of: Geometry, image: Geometry) -> Float[Tensor, ""]:
    """r₉₅/r₀₅ of the stretch of pairs: 1 for an isometry up to scale, infinite where more than 5 % collapse."""
    apart = of.pairs > 1e-12 * of.pairs.max()
    stretch = image.pairs[apart] / of.pairs[apart]
    if not len(stretch):
        return of.pairs.new_tensor(float("nan"))
    low, high = (stretch.kthvalue(1 + round(share * (len(stretch) - 1))).values for share in (0.05, 0.95))
    return high / low


def intruders(of: Geometry, image: Geometry, k: int) -> Float[Tensor, ""]:
    """How far those are, in `of`, that became neighbours in `image`: 0 none, 1 the farthest ones everywhere."""
    n = len(of.order)
    beyond = (of.order - k + 1).clamp(min=0)[image.order < k].sum()
    return beyond * 2 / (n * k * (2 * n - 3 * k - 1))


def _unit(x: Tensor) -> Tensor:
    """Of length 1; 0 stays 0."""
    size = x.norm()
    return x / size if float(size) > 0 else x
