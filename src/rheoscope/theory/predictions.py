"""Comparisons of measured with predicted values, and the Dataset of an experiment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rheoscope.messages.message import Message

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True)
class Comparison:
    """A measured value, the value that theory predicts, and the reason for it.

    >>> Comparison("t(γ = .9)", 2.72, 2.71, "published").gap < 0.004
    True
    """

    quantity: str
    value: float
    expected: float
    reason: str

    @property
    def gap(self) -> float:
        """The relative error, or the absolute error if 0 is expected."""
        return abs(self.value - self.expected) / (abs(self.expected) or 1.0)


DEFINITIONS = {
    "number": Message("measured value"),
    "expected": Message("value that theory predicts, published or derived in the docstring of the experiment"),
    "gap": Message("|number − expected| / |expected|, or |number| if 0 is expected"),
    "contrast": Message("the same quantity under another rule, for which the theory does not hold"),
}


def as_dataset(
    comparisons: Sequence[Comparison],
    curves: Mapping[str, tuple[tuple[str, ...], Tensor]],
    definitions: Mapping[str, str],
    coords: Mapping[str, Any],
    settings: Mapping[str, Any],
    contrasts: Mapping[str, float] | None = None,
) -> "xarray.Dataset":
    """A Dataset with the curves, the comparisons along `quantity`, the contrasts along `rule`, and the settings in `attrs`."""
    import xarray as xr

    values = dict(curves)
    for name in ("value", "expected", "gap"):
        column = torch.tensor([getattr(comparison, name) for comparison in comparisons], dtype=torch.float64)
        values["number" if name == "value" else name] = (("quantity",), column)
    all_coords = dict(coords) | {
        "quantity": [comparison.quantity for comparison in comparisons],
        "why": ("quantity", [comparison.reason for comparison in comparisons]),
    }
    if contrasts:
        values["contrast"] = (("rule",), torch.tensor(list(contrasts.values()), dtype=torch.float64))
        all_coords["rule"] = list(contrasts)
    all_definitions = {**DEFINITIONS, **definitions}
    data = {
        name: xr.Variable(dims, x.detach().cpu().numpy(), {"definition": all_definitions[name]})
        for name, (dims, x) in values.items()
    }
    return xr.Dataset(data, all_coords, dict(settings))
