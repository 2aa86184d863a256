"""Stacking of layers with different numbers of columns."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad


def stack_padded(rows: Sequence[Tensor], fill_value: float) -> Tensor:
    """Rows stacked, with the last dimension padded to the longest by `fill_value`.

    >>> stack_padded([torch.ones(1, 2), torch.ones(1, 3)], fill_value=0.0).tolist()
    [[[1.0, 1.0, 0.0]], [[1.0, 1.0, 1.0]]]
    """
    if len({row.shape for row in rows}) == 1:
        return torch.stack(list(rows))
    longest = max(row.shape[-1] for row in rows)
    return torch.stack([pad(row, (0, longest - row.shape[-1]), value=fill_value) for row in rows])
