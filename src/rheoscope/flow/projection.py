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
    found = by_iteration(spread) if spread.is_cuda else by_decomposition(spread)
    axes = torch.nn.functional.pad(found, (0, 2 - found.shape[-1])).to(points)
    flat = all_of_them @ axes
    return axes * flat.gather(-2, flat.abs().argmax(-2, keepdim=True)).sign()


def by_decomposition(spread: Float[Tensor, "*b d d"]) -> Float[Tensor, "*b d axes"]:
    """The two largest directions of a symmetric form, or as many as there are, by torch's own randomised decomposition."""
    with torch.random.fork_rng(devices=[]):  # the same picture every time, and the caller's draws untouched
        torch.default_generator.manual_seed(0)
        return torch.svd_lowrank(spread, q=min(16, spread.shape[-1]), niter=12)[2][..., :2]


def by_iteration(spread: Float[Tensor, "*b d d"], rounds: int = 24) -> Float[Tensor, "*b d axes"]:
    """The same in products and 16 x 16 problems alone: each QR of the other takes a GPU longer than the whole of this."""
    count, generator = min(16, spread.shape[-1]), torch.Generator().manual_seed(0)
    start = torch.randn(spread.shape[-1], count, generator=generator, dtype=torch.float64)
    found = start.to(spread).expand(*spread.shape[:-2], -1, -1)
    for _ in range(rounds):
        found = orthonormal(spread @ found)
    small = (found.mT @ spread @ found).double().cpu()  # 16 x 16: a GPU takes longer
    turn = torch.linalg.eigh((small + small.mT) / 2).eigenvectors.flip(-1)[..., :2]
    return found @ turn.to(found)


def orthonormal(x: Float[Tensor, "*b d k"]) -> Float[Tensor, "*b d k"]:
    """Columns at right angles and of length 1 that span the same, by the Cholesky factor of their inner products, in float64."""
    y = x.double()
    y = y / y.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-30)
    spare = 1e-14 * torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)  # for columns that are nothing
    factor = torch.linalg.cholesky_ex(y.mT @ y + spare).L
    return torch.linalg.solve_triangular(factor.mT, y, upper=True, left=False).to(x.dtype)


def on_plane(points: Float[Tensor, "*b p n d"], axes: Float[Tensor, "*b d 2"]) -> Float[Tensor, "*b p n 2"]:
    """Every token's direction as it is seen on a plane, cloud after cloud."""
    return torch.stack([directions(x) @ axes for x in points.unbind(-3)], -3)
