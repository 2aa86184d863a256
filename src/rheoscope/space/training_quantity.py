"""A quantity of an analysis that is followed while a model trains."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray


def mean(values: "xarray.DataArray") -> "xarray.DataArray":
    return values.mean()


def maximum(values: "xarray.DataArray") -> "xarray.DataArray":
    return values.max()


def last_point(values: "xarray.DataArray") -> "xarray.DataArray":
    return values.isel(point=-1)


@dataclass(frozen=True)
class TrainingQuantity:
    """A field of `analysis`, the field with its null, and the reduction to one number for a model.

    `order` is its place among all quantities. `uses_text` is False if the analysis brings its own tokens instead of the
    held-out text.
    """

    order: int
    analysis: str
    name: str
    field_name: str
    null_field: str
    definition: str
    settings: dict[str, Any] = field(default_factory=dict)
    reduce: "Callable[[xarray.DataArray], xarray.DataArray]" = mean
    uses_text: bool = True
