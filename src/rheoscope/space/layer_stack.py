"""Layers side by side in one tensor, where some have more columns than others."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad


def layer_by_layer(rows: Sequence[Tensor], beyond: float) -> Tensor:
    """Rows stacked, the last dimension of each as long as the longest: `beyond` its own end stands what there is none of.

    >>> layer_by_layer([torch.ones(1, 2), torch.ones(1, 3)], beyond=0.0).tolist()
    [[[1.0, 1.0, 0.0]], [[1.0, 1.0, 1.0]]]
    """
    if len({row.shape for row in rows}) == 1:
        return torch.stack(list(rows))
    longest = max(row.shape[-1] for row in rows)
    return torch.stack([pad(row, (0, longest - row.shape[-1]), value=beyond) for row in rows])
