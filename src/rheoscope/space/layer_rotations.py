"""Random rotations of what each layer reads: the null of heads whose operators have the same singular values.

A head applied to x̂Q is the rotated head, QM or QF, applied to x̂. All heads and texts share the rotations.
"""

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rheoscope.space.device_transfer import to_device
from rheoscope.space.view import View
from rheoscope.statistics.nulls import random_rotations


def layer_rotations(
    view: View, draws: int, generator: Generator, device: torch.device
) -> list[Float[Tensor, "draw d d"]]:
    """For every layer the rotations of E, or of the vectors with mean 0 if its norm subtracts the mean."""
    rotations = {
        is_centred: (centred_rotations if is_centred else random_rotations)(draws, view.width, generator, device=device)
        for is_centred in sorted({heads.norm.subtracts_mean for heads in view.layer_heads})
    }
    return [rotations[heads.norm.subtracts_mean] for heads in view.layer_heads]


def centred_rotations(
    count: int, width: int, generator: Generator, device: torch.device | None = None
) -> Float[Tensor, "count d d"]:
    """Uniformly distributed rotations of the vectors with mean 0. Constant vectors go to 0.

    >>> Q = centred_rotations(2, 5, Generator().manual_seed(0))
    >>> torch.allclose(Q @ Q.mT, (torch.eye(5) - 1 / 5).expand(2, 5, 5), atol=1e-6)
    True
    """
    columns = torch.eye(width, dtype=torch.float64).roll(1, -1)
    columns[:, 0] = 1
    basis = to_device(torch.linalg.qr(columns).Q[:, 1:].float(), device)  # orthogonal to the first column
    return basis @ random_rotations(count, width - 1, generator, device=device) @ basis.mT
