"""How far the operators of two models are from each other, head by head: distances of M at several offsets, and of F.

    ‖A − B‖ / √((‖A‖² + ‖B‖²)/2),   A = L R K,  B = L' R' K'  with the rotations R and R' of an offset

    A − B = [L − L', L'] [[R, 0], [R − R', R']] [K; K − K']

Both outer factors are replaced by the triangular factors of their QR decompositions, so no (d, d) matrix exists. Equal factors
give exactly 0.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.space.decompositions import triangular_factor
from rheoscope.space.head import Heads, Relevance
from rheoscope.space.operator import Factored
from rheoscope.space.safe_arithmetic import safe_divide

OFFSETS = (0, 1, 2, 4, 8, 16, 32, 64)
"""The offsets between query and key at which M is compared under RoPE. Without RoPE, M is the same at all of them."""
Rotation = Float[Tensor, "r r"]


def relevance_distances(first: Heads, second: Heads) -> Float[Tensor, "offset h"]:
    """The distances of the M of every head at `OFFSETS`, or at 0 alone without RoPE; raises for a head without M."""
    A, B = first.M(), second.M()
    if A.rotation is None and B.rotation is None:
        return relative_distances(A, B, [None])
    return relative_distances(A, B, [(_rotation(A, offset), _rotation(B, offset)) for offset in OFFSETS])


def content_distances(first: Heads, second: Heads) -> Float[Tensor, " h"]:
    """The distance of the F of every head; raises for a head without F."""
    return relative_distances(first.F(), second.F(), [None])[0]


def _rotation(M: Relevance, offset: int) -> Rotation:
    """R(δ), or the identity for an M without rotation."""
    if M.rotation is None:
        return torch.eye(M.left.shape[-1], dtype=torch.float64, device=M.left.device)
    return M.rotation(offset).double()


def relative_distances(
    first: Factored, second: Factored, rotations: Sequence[tuple[Rotation, Rotation] | None]
) -> Float[Tensor, "rotation h"]:
    """‖A − B‖ / √((‖A‖² + ‖B‖²)/2) for operators of equal shape, between 0 and 2; √2 for orthogonal ones of equal norm.

    `rotations` are inserted between the factors of A and of B; None inserts nothing.

    **Laws** It is symmetric, 0 for equal operators, and the same after (L G, G⁻¹ K) in either operator.

    >>> A = Factored(torch.tensor([[[1.0], [0.0]]]), torch.tensor([[[1.0, 0.0]]]))
    >>> B = Factored(torch.tensor([[[0.0], [2.0]]]), torch.tensor([[[0.0, 0.5]]]))
    >>> relative_distances(A, A, [None]).item(), round(relative_distances(A, B, [None]).item(), 4)
    (0.0, 1.4142)
    """
    L, K, other_L, other_K = (
        factor.detach().double() for factor in (first.left, first.right, second.left, second.right)
    )
    other_L, other_K = other_L.to(L.device), other_K.to(L.device)
    left = triangular_factor(torch.cat([L - other_L, other_L], -1))
    right = triangular_factor(torch.cat([K, K - other_K], -2).mT).mT
    own = [(triangular_factor(x), triangular_factor(y.mT).mT) for x, y in ((L, K), (other_L, other_K))]
    distances = []
    for rotation in rotations:
        R, other_R = _both_rotations(rotation, L)
        middle = torch.cat([torch.cat([R, torch.zeros_like(R)], -1), torch.cat([R - other_R, other_R], -1)], -2)
        difference = _norm(left @ middle @ right)
        norms = [_norm(outer @ inner @ end) for (outer, end), inner in zip(own, (R, other_R), strict=True)]
        squared = (norms[0].square() + norms[1].square()) / 2
        distances.append(safe_divide(difference, squared.sqrt()))
    return torch.stack(distances).cpu()


def _both_rotations(rotation: tuple[Rotation, Rotation] | None, L: Tensor) -> tuple[Rotation, Rotation]:
    identity = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    return (identity, identity) if rotation is None else (rotation[0].to(L), rotation[1].to(L))


def _norm(A: Float[Tensor, "h a b"]) -> Float[Tensor, " h"]:
    return torch.linalg.matrix_norm(A)
