"""Means over the heads that share a key, which are the independent units of a layer."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.space.results import Results

if TYPE_CHECKING:
    import xarray


def key_group_means(results: Results, values: "xarray.DataArray") -> np.ndarray:
    """Means over the heads that share a key. These groups are independent under random weights."""
    n_groups = len(results.view.layer_heads[0].W_K)
    return values.values.reshape(values.sizes["layer"], n_groups, -1).mean(-1).ravel()
