"""Distances and cosines of all pairs of a cloud from one table of inner products."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

PairMatrix = Float[Tensor, "*t n n"]


def centred_inner_products(x: Float[Tensor, "*t n d"]) -> PairMatrix:
    """⟨x_i − x̄, x_j − x̄⟩ for all pairs, in the dtype of the cloud."""
    x = x - x.mean(-2, keepdim=True)
    return x @ x.mT


def distances(inner: PairMatrix) -> PairMatrix:
    """‖x_i − x_j‖, with rounding errors set to 0, so that equal points have distance 0.

    >>> distances(centred_inner_products(torch.tensor([[0.0], [1.0], [3.0]]))).tolist()
    [[0.0, 1.0, 3.0], [1.0, 0.0, 2.0], [3.0, 2.0, 0.0]]
    """
    squared_norms = inner.diagonal(dim1=-2, dim2=-1)
    return distances_between(inner, squared_norms, squared_norms)


def distances_between(
    inner: Float[Tensor, "*t m n"],
    row_squared_norms: Float[Tensor, "*t m"],
    column_squared_norms: Float[Tensor, "*t n"],
) -> Float[Tensor, "*t m n"]:
    """‖x_i − y_j‖ from ⟨x_i, y_j⟩ and both squared lengths, with rounding errors set to 0."""
    return distance_from_products(row_squared_norms[..., :, None] + column_squared_norms[..., None, :], inner)


def distance_from_products(squared_sum: Float[Tensor, "*p"], inner: Float[Tensor, "*p"]) -> Float[Tensor, "*p"]:
    """‖x − y‖ from ‖x‖² + ‖y‖² and ⟨x, y⟩, with rounding errors set to 0."""
    squared_distance = squared_sum.sub(inner, alpha=2)
    return torch.where(squared_distance > distance_rounding(inner.dtype) * squared_sum, squared_distance, 0).sqrt()


def distance_rounding(dtype: torch.dtype) -> float:
    """The relative rounding error of a squared distance: a smaller fraction of both squared lengths counts as 0."""
    return 450 * torch.finfo(dtype).eps


def cosines(inner: PairMatrix) -> PairMatrix:
    """cos(x_i, x_j); two points at the origin have cosine 1, one at the origin and another point have 0.

    >>> cosines(torch.tensor([[4.0, 2.0], [2.0, 1.0]])).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    norms = inner.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    is_zero = norms == 0
    inverse = torch.where(is_zero, 0, 1 / torch.where(is_zero, 1, norms))
    cosine = (inner * inverse[..., :, None] * inverse[..., None, :]).clamp(-1, 1)
    return torch.where(is_zero[..., :, None] & is_zero[..., None, :], 1, cosine) if bool(is_zero.any()) else cosine


def upper_triangle(table: PairMatrix) -> Float[Tensor, "*t pairs"]:
    """The entries of all pairs i < j, row after row.

    >>> upper_triangle(torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])).tolist()
    [1.0, 2.0, 3.0]
    """
    i, j = torch.triu_indices(table.shape[-1], table.shape[-1], 1, device=table.device)
    return table[..., i, j]


def pair_numbers(first: Int[Tensor, "*b"], second: Int[Tensor, "*b"], n: int) -> Int[Tensor, "*b"]:
    """The places of these pairs among `upper_triangle` of a table of n rows, in either order.

    >>> pair_numbers(torch.tensor([0, 2]), torch.tensor([2, 1]), 3).tolist()
    [1, 2]
    """
    i, j = torch.minimum(first, second), torch.maximum(first, second)
    return i * (2 * n - i - 1) // 2 + j - i - 1
