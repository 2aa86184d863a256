"""One number of a field of a result: its median, its largest value and where that is."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray


def median_of(field: "xarray.DataArray") -> float:
    """The median of the finite values, NaN without any.

    >>> import xarray as xr
    >>> median_of(xr.DataArray([1.0, 5.0, float("nan"), 2.0], dims="layer"))
    2.0
    """
    values = np.asarray(field.values, dtype=float)
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else float("nan")


def place_of_largest(field: "xarray.DataArray") -> dict[str, Any]:
    """The coordinates, or indices, of the value that is farthest from 0. Empty if no value is finite.

    >>> import xarray as xr
    >>> place_of_largest(xr.DataArray([[1.0, -5.0], [float("nan"), 2.0]], dims=("layer", "head")))
    {'layer': 0, 'head': 1}
    """
    sizes = np.abs(np.nan_to_num(np.asarray(field.values, dtype=float), nan=0.0))
    if not np.isfinite(field.values).any():
        return {}
    place = np.unravel_index(int(sizes.argmax()), sizes.shape)
    indices = {str(dim): int(index) for dim, index in zip(field.dims, place, strict=True)}
    return {dim: field[dim].values[index] if dim in field.coords else index for dim, index in indices.items()}


def largest_head(field: "xarray.DataArray") -> tuple[str, float]:
    """The name of the head with the largest absolute value, and the value; ("none", NaN) without values.

    >>> import xarray as xr
    >>> largest_head(xr.DataArray([[1.0, -5.0]], dims=("layer", "head"), coords={"layer": [4], "head": [2, 3]}))
    ('L4.H3', -5.0)
    """
    place = place_of_largest(field)
    if not place:
        return "none", float("nan")
    by_index = field.isel({dim: 0 for dim in field.dims if dim not in place})
    value = float(np.asarray(by_index.values).ravel()[int(np.abs(np.nan_to_num(by_index.values)).argmax())])
    return f"L{place['layer']}.H{place['head']}", value
