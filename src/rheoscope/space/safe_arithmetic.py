"""Division without NaN, and the dtype of statistics."""

import torch
from torch import Tensor


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator; 0 if the denominator is 0.

    >>> safe_divide(torch.tensor([1.0, 3.0]), torch.tensor([4.0, 0.0])).tolist()
    [0.25, 0.0]
    """
    is_positive = denominator > 0
    return torch.where(is_positive, numerator / torch.where(is_positive, denominator, 1), 0)


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor in float32 or better, the dtype of every statistic."""
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.promote_types(x.dtype, torch.float32))
