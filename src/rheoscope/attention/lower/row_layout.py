"""The layout of the rows of a half-precision kernel: widths, bias columns and unit length."""

from typing import NamedTuple

import torch
from torch import Tensor

GAIN = 16.0
"""The factor of the bias in the query columns, with which a bias of a million still fits into float16."""
PARTS, COLUMN_STEP = 3, 16


class RowLayout(NamedTuple):
    """The layout of one side: whether rows have unit length, and bias columns for neither side (0), keys (1) or both (2)."""

    unit_length: bool = False
    bias_groups: int = 0
    is_key: bool = False
    square: float = 0.0
    scale: float = 1.0

    def width(self, d: int) -> int:
        d += PARTS * self.bias_groups
        return d + -d % (COLUMN_STEP if self.bias_groups else 8)

    @property
    def has_bias(self) -> bool:
        """Whether this side has a bias in its own columns."""
        return self.bias_groups > (0 if self.is_key else 1)

    def is_identity(self, x: Tensor, dtype: torch.dtype) -> bool:
        """Whether the rows need no change."""
        return not self.unit_length and x.dtype == dtype and self.width(x.shape[-1]) == x.shape[-1]
