"""A number of the bench beside the one that theory gives, and a whole experiment as a Dataset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True)
class Number:
    """What was measured, what theory gives, and why that is the value.

    >>> Number("t(γ = .9)", 2.72, 2.71, "published").gap < 0.004
    True
    """

    quantity: str
    value: float
    expected: float
    why: str

    @property
    def gap(self) -> float:
        """Relative; absolute where 0 is expected."""
        return abs(self.value - self.expected) / (abs(self.expected) or 1.0)


DEFINITIONS = {
    "number": "what the experiment measured",
    "expected": "what theory gives: published, or derived on the page of the experiment",
    "gap": "|number − expected| / |expected|; |number| where 0 is expected",
    "contrast": "the same quantity under another rule, for which the theory does not hold",
}


def as_dataset(
    numbers: Sequence[Number],
    curves: Mapping[str, tuple[tuple[str, ...], Tensor]],
    definitions: Mapping[str, str],
    coords: Mapping[str, Any],
    settings: Mapping[str, Any],
    contrasts: Mapping[str, float] | None = None,
) -> "xarray.Dataset":
    """Curves as they are, numbers along `quantity`, contrasts along `rule`, settings in `attrs`."""
    import xarray as xr

    values = dict(curves)
    for name in ("value", "expected", "gap"):
        column = torch.tensor([getattr(one, name) for one in numbers], dtype=torch.float64)
        values["number" if name == "value" else name] = (("quantity",), column)
    along = dict(coords) | {
        "quantity": [one.quantity for one in numbers],
        "why": ("quantity", [one.why for one in numbers]),
    }
    if contrasts:
        values["contrast"] = (("rule",), torch.tensor(list(contrasts.values()), dtype=torch.float64))
        along["rule"] = list(contrasts)
    defined = {**DEFINITIONS, **definitions}
    data = {
        name: xr.Variable(dims, x.detach().cpu().numpy(), {"definition": defined[name]})
        for name, (dims, x) in values.items()
    }
    return xr.Dataset(data, along, dict(settings))
