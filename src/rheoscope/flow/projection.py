"""One plane for many clouds: directions of tokens around their cloud's mean, seen along the two in which they spread most."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def directions(x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
    """(x_i − x̄)/‖x_i − x̄‖: where each token stands on the sphere around its cloud's mean; 0 for one that stands at the mean.

    >>> directions(torch.tensor([[0.0, 0.0], [4.0, 0.0], [2.0, 0.0]])).tolist()
    [[-1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    """
    centred = x - x.mean(-2, keepdim=True)
    length, longest = centred.norm(dim=-1, keepdim=True), x.norm(dim=-1)[..., None].amax(-2, keepdim=True)
    there = length > 8 * torch.finfo(x.dtype).eps * longest  # what is nothing but rounding has no direction
    return torch.where(there, centred / torch.where(there, length, 1), 0)


def plane(points: Float[Tensor, "*b p n d"], fitted: Sequence[int]) -> Float[Tensor, "*b d 2"]:
    """The two directions of E along which the clouds `fitted` spread most on the sphere, each cloud counting the same.

    The sign of a direction is free: the token farthest along it is put on the positive side.
    """
    all_of_them = torch.cat([directions(points[..., at, :, :]) for at in fitted], -2)
    spread = all_of_them.mT @ all_of_them
    with torch.random.fork_rng(devices=[]):  # the same picture every time, and the caller's draws untouched
        torch.manual_seed(0)
        found = torch.svd_lowrank(spread.cpu(), q=min(16, spread.shape[-1]), niter=12)[2][..., :2]
    axes = torch.nn.functional.pad(found, (0, 2 - found.shape[-1])).to(points)
    flat = all_of_them @ axes
    return axes * flat.gather(-2, flat.abs().argmax(-2, keepdim=True)).sign()


def on_plane(points: Float[Tensor, "*b p n d"], axes: Float[Tensor, "*b d 2"]) -> Float[Tensor, "*b p n 2"]:
    """Every token's direction as it is seen on a plane, cloud after cloud."""
    return torch.stack([directions(x) @ axes for x in points.unbind(-3)], -3)
