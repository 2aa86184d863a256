"""The plane on which the directions of many clouds are projected: their first two principal components."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.space.seeded_draws import seeded_draws


def centred_directions(x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
    """(x_i − x̄)/‖x_i − x̄‖: the direction of every token around the mean of its cloud; 0 for a token at the mean.

    >>> centred_directions(torch.tensor([[0.0, 0.0], [4.0, 0.0], [2.0, 0.0]])).tolist()
    [[-1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    """
    centred, inverse_length = centred_points_and_inverse_lengths(x)
    return centred * inverse_length


def centred_points_and_inverse_lengths(
    x: Float[Tensor, "*b n d"],
) -> tuple[Float[Tensor, "*b n d"], Float[Tensor, "*b n 1"]]:
    """x_i − x̄ and 1/‖x_i − x̄‖, which is 0 for a token at the mean."""
    centred = x - x.mean(-2, keepdim=True)
    length, longest = centred.norm(dim=-1, keepdim=True), x.norm(dim=-1)[..., None].amax(-2, keepdim=True)
    has_direction = length > 8 * torch.finfo(x.dtype).eps * longest  # below this, the difference is rounding error
    return centred, torch.where(has_direction, 1 / torch.where(has_direction, length, 1), 0)


def fit_plane(points: Float[Tensor, "*b p n d"], fit_indices: Sequence[int]) -> Float[Tensor, "*b d 2"]:
    """The first two principal components of the directions of the clouds at `fit_indices`, with equal weight per cloud.

    The sign of a component is arbitrary. It is chosen so that the token with the largest projection is on the positive side.
    """
    all_directions = torch.cat([centred_directions(points[..., index, :, :]) for index in fit_indices], -2)
    scatter = all_directions.mT @ all_directions
    top_axes = top_axes_by_iteration(scatter) if scatter.is_cuda else top_axes_by_svd(scatter)
    axes = torch.nn.functional.pad(top_axes, (0, 2 - top_axes.shape[-1])).to(points)
    projections = all_directions @ axes
    return axes * projections.gather(-2, projections.abs().argmax(-2, keepdim=True)).sign()


def top_axes_by_svd(scatter: Float[Tensor, "*b d d"]) -> Float[Tensor, "*b d axes"]:
    """The two leading eigenvectors of a symmetric matrix (or all, if it has fewer), by torch's randomised SVD."""
    with seeded_draws(0, cpu_only=True):  # reproducible, and independent of the caller's generator
        return torch.svd_lowrank(scatter, q=min(16, scatter.shape[-1]), niter=12)[2][..., :2]


def top_axes_by_iteration(scatter: Float[Tensor, "*b d d"], rounds: int = 24) -> Float[Tensor, "*b d axes"]:
    """The same by subspace iteration with 16 columns. On a GPU this is faster than a single QR of the randomised SVD."""
    n_columns, generator = min(16, scatter.shape[-1]), torch.Generator().manual_seed(0)
    start = torch.randn(scatter.shape[-1], n_columns, generator=generator, dtype=torch.float64)
    basis = start.to(scatter).expand(*scatter.shape[:-2], -1, -1)
    for _ in range(rounds):
        basis = orthonormalise(scatter @ basis)
    projected_scatter = (basis.mT @ scatter @ basis).double().cpu()  # a 16 x 16 problem is faster on the CPU
    rotation = torch.linalg.eigh((projected_scatter + projected_scatter.mT) / 2).eigenvectors.flip(-1)[..., :2]
    return basis @ rotation.to(basis)


def orthonormalise(x: Float[Tensor, "*b d k"]) -> Float[Tensor, "*b d k"]:
    """Orthonormal columns with the same span, by the Cholesky factor of the Gram matrix in float64."""
    y = x.double()
    y = y / y.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-30)
    ridge = 1e-14 * torch.eye(
        y.shape[-1], dtype=y.dtype, device=y.device
    )  # keeps the factorisation defined for zero columns
    factor = torch.linalg.cholesky_ex(y.mT @ y + ridge).L
    return torch.linalg.solve_triangular(factor.mT, y, upper=True, left=False).to(x.dtype)


def project_on_plane(points: Float[Tensor, "*b p n d"], axes: Float[Tensor, "*b d 2"]) -> Float[Tensor, "*b p n 2"]:
    """The direction of every token projected on the plane, cloud by cloud."""
    clouds = map(centred_points_and_inverse_lengths, points.unbind(-3))
    return torch.stack([centred @ axes * inverse_length for centred, inverse_length in clouds], -3)
