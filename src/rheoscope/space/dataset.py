"""Named arrays as an xarray.Dataset, every one with its definition: what every analysis gives."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def dataset(
    values: Mapping[str, tuple[tuple[str, ...], Any]],
    definitions: Mapping[str, str],
    coords: Mapping[str, Any],
    attributes: Mapping[str, Any],
) -> Any:
    """Named arrays as an xarray.Dataset, every one with its definition."""
    import xarray as xr

    data = {
        name: xr.Variable(
            dims, x.detach().cpu().numpy() if isinstance(x, Tensor) else x, {"definition": definitions[name]}
        )
        for name, (dims, x) in values.items()
    }
    return xr.Dataset(data, coords, attributes)
