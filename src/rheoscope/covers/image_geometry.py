"""What images of many clouds keep of them, every token seen from every other: the numbers of COMPARED, many texts at once.

Tokens stay where they are; those that do not count (padding, massive tokens) are nobody's neighbours and in no pair. What
`geometry.py` says of one cloud in float64, this says in the fewest passes over tables of distances, of long texts in float32 on a
GPU: there are two million of them a head.
"""

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import numbers_in_cache
from rheoscope.space.masked_means import centred
from rheoscope.space.safe_arithmetic import share
from rheoscope.statistics.ranks import unit_ranks

TRITON = find_spec("triton") is not None
MANY = 256
"""Tokens from which on classes of pairs hold several, and kernels pay."""
Clouds = Float[Tensor, "b c n e"]


@dataclass(frozen=True, eq=False)
class Seen:
    """Clouds around their means: all pairwise distances, and which tokens are near which.

    `near` are the tokens of a row, the nearest first (of equally near ones the earlier); `order[i, j]` says how many are nearer
    to i than j. `ranks` are those of the distances of all `pairs` i < j, of length 1.
    """

    x: Float[Tensor, "b c n e"]
    distance: Float[Tensor, "b c n n"]
    pairs: Float[Tensor, "b c p"]
    ranks: Float[Tensor, "b c p"]
    near: Int[Tensor, "b c n n"]
    order: Int[Tensor, "b c n n"]


def kept_by_images(
    cloud: Float[Tensor, "b n d"], there: Bool[Tensor, "b n"], images: Clouds, nearest: int
) -> Float[Tensor, "b c 6"]:
    """What each of the images of a cloud keeps of it, for many clouds: the numbers of COMPARED."""
    (b, n), c = there.shape, images.shape[1]
    room, found = numbers_in_cache(cloud.device), []
    compare = by_kernels if cloud.is_cuda and TRITON and n >= MANY else compared
    for some in torch.arange(b).split(max(1, room // (c * n * n))):
        texts = slice(int(some[0]), int(some[-1]) + 1)
        of = seen(cloud[texts, None], there[texts])
        parts = images[texts].split(max(1, room // (len(some) * n * n)), 1)
        found.append(torch.cat([compare(of, part, there[texts], nearest) for part in parts], 1))
    return torch.cat(found)


def distances(x: Clouds, there: Bool[Tensor, "b n"]) -> tuple[Clouds, Float[Tensor, "b c n n"]]:
    """Clouds around their means and their distances, ‖x_i − x_j‖² = ⟨(−2x_i, ‖x_i‖², 1), (x_j, 1, ‖x_j‖²)⟩, one product in float64."""
    shape = x.shape[:2]
    x = centred(x.double().flatten(0, 1), there.repeat_interleave(shape[1], 0))
    size, one = x.square().sum(-1, keepdim=True), torch.ones_like(x[..., :1])
    square = torch.cat([-2 * x, size, one], -1) @ torch.cat([x, one, size], -1).mT
    square = square.to(torch.float64 if x.device.type == "cpu" or x.shape[-2] < MANY else torch.float32)
    rounding = (900 * torch.finfo(x.dtype).eps * size.amax(-2, keepdim=True)).to(square.dtype)
    distance = torch.where(square > rounding, square, 0).sqrt_()
    return x.unflatten(0, shape), distance.unflatten(0, shape)


def seen(x: Clouds, there: Bool[Tensor, "b n"]) -> Seen:
    """All that is known of clouds."""
    n = x.shape[-2]
    x, distance = distances(x, there)
    pairs = distance.flatten(-2).index_select(-1, _upper(n, x.device))
    near = distance.masked_fill(~_others(there)[:, None], torch.inf).sort(dim=-1, stable=True).indices
    places = torch.arange(n, dtype=torch.int32, device=x.device).expand_as(near)
    order = torch.empty(near.shape, dtype=torch.int32, device=x.device).scatter_(-1, near, places)
    return Seen(x, distance, pairs, unit_ranks(pairs, _usable(there)[:, None]), near, order)


def compared(of: Seen, images: Clouds, there: Bool[Tensor, "b n"], k: int) -> Float[Tensor, "b c 6"]:
    """What images keep of their cloud: the numbers of COMPARED, in that order."""
    image, usable = seen(images, there), _usable(there)
    in_cloud = of.order.expand_as(image.order).gather(-1, image.near[..., :k])
    in_image = image.order.gather(-1, of.near[..., :k].expand(*image.near.shape[:-1], k))
    rows = there[:, None, :, None]
    intruders, lost = (
        torch.where(rows, (order - k + 1).clamp(min=0), 0).sum((-2, -1)) for order in (in_cloud, in_image)
    )
    shared = torch.where(rows, in_cloud < k, False).sum((-2, -1))
    rsa = (of.ranks * image.ranks).sum(-1, dtype=torch.float64)
    return _told(
        spread(of.pairs, image.pairs, usable), shared, intruders, lost, rsa, alignment(of.x, image.x), there, k
    )


def by_kernels(of: Seen, images: Clouds, there: Bool[Tensor, "b n"], k: int) -> Float[Tensor, "b c 6"]:
    """The same in three passes over the distances of the images."""
    from rheoscope.covers.kernels.pairs import kept_pairs  # Triton, which not every machine has

    (b, n), (x, distance) = there.shape, distances(images, there)
    ranks = torch.zeros(b, n * n, device=x.device)
    ranks[:, _upper(n, x.device)] = of.ranks[:, 0].float()
    near = of.near[:, 0, :, :k].int().contiguous()
    found = kept_pairs(distance, of.distance[:, 0], there, of.order[:, 0], near, ranks.unflatten(1, (n, n)))
    return _told(found.spread, found.shared, found.intruders, found.lost, found.rsa, alignment(of.x, x), there, k)


def _told(
    stretch: Tensor,
    shared: Tensor,
    intruders: Tensor,
    lost: Tensor,
    rsa: Tensor,
    cka: Tensor,
    there: Bool[Tensor, "b n"],
    k: int,
) -> Float[Tensor, "b c 6"]:
    count = there.sum(-1)[:, None].double()
    worst = count * k * (2 * count - 3 * k - 1) / 2
    return torch.stack([stretch.double(), shared / (k * count), 1 - intruders / worst, 1 - lost / worst, rsa, cka], -1)


def spread(
    before: Float[Tensor, "b 1 p"], after: Float[Tensor, "b c p"], usable: Bool[Tensor, "b p"]
) -> Float[Tensor, "b c"]:
    """r₉₅/r₀₅ of the stretch of pairs that are apart; NaN where none is."""
    longest = torch.where(usable[:, None], before, 0).amax(-1, keepdim=True)
    apart = usable[:, None] & (before > 1e-12 * longest)
    stretch = torch.where(apart, after / torch.where(apart, before, 1), torch.inf).sort(-1).values
    last = apart.sum(-1).double() - 1
    low, high = (
        stretch.gather(-1, (share * last).round().long().clamp(min=0)[..., None].expand(*stretch.shape[:2], 1))[..., 0]
        for share in (0.05, 0.95)
    )
    return torch.where(last >= 0, high / low, torch.nan).double()


def alignment(x: Float[Tensor, "b 1 n d"], y: Float[Tensor, "b c n e"]) -> Float[Tensor, "b c"]:
    """Linear CKA of centred clouds, ‖XᵀY‖² / (‖XᵀX‖ ‖YᵀY‖): inner products of columns, none of tokens; 0 where one is a point."""
    both = (x[:, 0].mT @ y.transpose(1, 2).flatten(2)).unflatten(-1, (y.shape[1], -1)).square().sum((1, 3))
    own, other = ((z.mT @ z).square().sum((-2, -1)).sqrt() for z in (x, y))
    return share(both, own * other)


def _upper(n: int, device: torch.device) -> Int[Tensor, " p"]:
    """Places of the pairs i < j in a table of all; nothing is asked of the device."""
    i, j = torch.triu_indices(n, n, 1, device=device)
    return i * n + j


def _usable(there: Bool[Tensor, "b n"]) -> Bool[Tensor, "b p"]:
    """Which pairs are of tokens that count."""
    return _both(there).flatten(-2).index_select(-1, _upper(there.shape[-1], there.device))


def _both(there: Bool[Tensor, "b n"]) -> Bool[Tensor, "b n n"]:
    return there[:, :, None] & there[:, None]


def _others(there: Bool[Tensor, "b n"]) -> Bool[Tensor, "b n n"]:
    """Which tokens are another's possible neighbours."""
    return _both(there) & ~torch.eye(there.shape[-1], dtype=torch.bool, device=there.device)
