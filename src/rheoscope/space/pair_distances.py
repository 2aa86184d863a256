"""All pairs of a cloud from one table of inner products: distances and cosines, however many dimensions E has."""

import torch
from jaxtyping import Float
from torch import Tensor

Table = Float[Tensor, "*t n n"]


def inner_products(x: Float[Tensor, "*t n d"]) -> Table:
    """⟨x_i − x̄, x_j − x̄⟩ of all pairs, in the dtype of the cloud."""
    x = x - x.mean(-2, keepdim=True)
    return x @ x.mT


def distances(inner: Table) -> Table:
    """‖x_i − x_j‖; what is nothing but rounding is 0, so that equal points are at distance 0.

    >>> distances(inner_products(torch.tensor([[0.0], [1.0], [3.0]]))).tolist()
    [[0.0, 1.0, 3.0], [1.0, 0.0, 2.0], [3.0, 2.0, 0.0]]
    """
    length = inner.diagonal(dim1=-2, dim2=-1)
    return distances_between(inner, length, length)


def distances_between(
    inner: Float[Tensor, "*t m n"], rows: Float[Tensor, "*t m"], columns: Float[Tensor, "*t n"]
) -> Float[Tensor, "*t m n"]:
    """‖x_i − y_j‖ from ⟨x_i, y_j⟩ and the squared lengths of both; what is nothing but rounding is 0."""
    return apart(rows[..., :, None] + columns[..., None, :], inner)


def apart(both: Float[Tensor, "*p"], inner: Float[Tensor, "*p"]) -> Float[Tensor, "*p"]:
    """‖x − y‖ from ‖x‖² + ‖y‖² and ⟨x, y⟩; what is nothing but rounding is 0."""
    square = both.sub(inner, alpha=2)
    return torch.where(square > rounding(inner.dtype) * both, square, 0).sqrt()


def rounding(dtype: torch.dtype) -> float:
    """A squared distance that is a smaller share of both squared lengths is nothing but rounding."""
    return 450 * torch.finfo(dtype).eps


def cosines(inner: Table) -> Table:
    """cos(x_i, x_j); a point at the origin is like another one there and like no other.

    >>> cosines(torch.tensor([[4.0, 2.0], [2.0, 1.0]])).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    length = inner.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    still = length == 0
    inverse = torch.where(still, 0, 1 / torch.where(still, 1, length))
    table = (inner * inverse[..., :, None] * inverse[..., None, :]).clamp(-1, 1)
    return torch.where(still[..., :, None] & still[..., None, :], 1, table) if bool(still.any()) else table


def upper(table: Table) -> Float[Tensor, "*t pairs"]:
    """The entries of all pairs i < j, row after row.

    >>> upper(torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])).tolist()
    [1.0, 2.0, 3.0]
    """
    i, j = torch.triu_indices(table.shape[-1], table.shape[-1], 1, device=table.device)
    return table[..., i, j]
