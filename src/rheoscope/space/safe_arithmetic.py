"""A part over its whole where there may be no whole, and the dtype that shares are computed in."""

import torch
from torch import Tensor


def share(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole; 0 where the whole is 0.

    >>> share(torch.tensor([1.0, 3.0]), torch.tensor([4.0, 0.0])).tolist()
    [0.25, 0.0]
    """
    there = whole > 0
    return torch.where(there, part / torch.where(there, whole, 1), 0)


def exact(x: Tensor) -> Tensor:
    """In float32 or better, as every statistic is."""
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.promote_types(x.dtype, torch.float32))
