"""One number of every head as a map of layers x heads: the panel that analyses of heads share."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.picture import Axis, Cells, Line, Panel, number
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import xarray

COLOURS = {
    "previous_token": "third",
    "induction": "seventh",
    "duplicate_token": "fourth",
    "sink": "fifth",
    "local": "eighth",
    "uniform": "null",
}
"""The colour of a type of head on every map; a mixed head has none."""
TYPED = " Dots are types of heads; heads without one are mixed."
"""What a caption adds where maps are coloured by type."""
MIXED = "#c9cfda"
"""The colour of mixed heads where every head has one."""


def head_map(
    title: str,
    about: str,
    values: np.ndarray,
    reach: tuple[float, float] = (-1.0, 1.0),
    marked: frozenset[tuple[int, int]] = frozenset(),
    beside: Mapping[str, np.ndarray] | None = None,
    types: "xarray.Dataset | None" = None,
    centre: float = 0.0,
    name: str = "",
) -> Panel:
    """One square a head, colours over `reach`, some heads framed; further numbers `beside` it under the pointer.

    `name` is what the scale of the colours says of them.

    With `types`, the Dataset of `head_types`, a dot on every head says what kind it is.
    """
    layers, count = values.shape
    kinds = kinds_of(types, values.shape)
    tips = [[_tip(layer, head, values, beside or {}, kinds) for head in range(count)] for layer in range(layers)]
    sides = Axis("head", tuple(str(h) for h in range(count))), Axis("", tuple(f"L{layer}" for layer in range(layers)))
    cells = Cells(values, tips=tips, marked=marked, low=reach[0], high=reach[1], centre=centre, name=name)
    return Panel(title, about, (cells, *dots(kinds)), *sides, height=max(0.8, (layers * 9 + 46) / 236))


def kinds_of(types: "xarray.Dataset | None", shape: tuple[int, ...]) -> np.ndarray | None:
    """The name of every head's type, after a look whether it is this model's."""
    if types is None:
        return None
    if "type" not in getattr(types, "data_vars", {}) or types.type.shape != shape:
        came = getattr(getattr(types, "type", None), "shape", type(types).__name__)
        raise RheoscopeError(
            f"types are those of {shape[0]} layers of {shape[1]} heads, got {came}; type types=rs.head_types(model)"
        )
    return types.type.values


def dots(kinds: np.ndarray | None) -> list[Line]:
    """A dot on every head that has a type, a series a type."""
    if kinds is None:
        return []
    there = {name: np.argwhere(kinds == name) for name in COLOURS}
    return [
        Line(said(name), at[:, 1], at[:, 0], COLOURS[name], "dots") for name, at in there.items() if len(at)
    ]  # rows are layers


def said(kind: str) -> str:
    """A type in words.

    >>> said("previous_token")
    'previous-token'
    """
    return kind.replace("_", "-")


def _tip(layer: int, head: int, values: np.ndarray, beside: Mapping[str, np.ndarray], kinds: np.ndarray | None) -> str:
    more = "".join(f", {name} {number(float(table[layer, head]))}" for name, table in beside.items())
    kind = "" if kinds is None else f", {said(str(kinds[layer, head]))}"
    return f"L{layer}.H{head}: {number(float(values[layer, head]))}{more}{kind}"
