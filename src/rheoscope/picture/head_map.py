"""One number of every head as a map of layers x heads: the panel that analyses of heads share."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.picture.picture import Axis, Cells, Line, Panel, format_value
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import xarray

TYPE_COLOURS = {
    "previous_token": "third",
    "induction": "seventh",
    "duplicate_token": "fourth",
    "sink": "fifth",
    "local": "eighth",
    "uniform": "null",
}
"""The colour of a type of head on every map; a mixed head has none."""
TYPES_CAPTION = Message("A dot marks the type of a head. Heads without a dot have no single type.")
"""What a caption adds where maps are coloured by type."""
MIXED_COLOUR = "#c9cfda"
"""The colour of mixed heads where every head has one."""


def head_map(
    title: str,
    description: str,
    values: np.ndarray,
    value_range: tuple[float, float] = (-1.0, 1.0),
    framed_heads: frozenset[tuple[int, int]] = frozenset(),
    tip_values: Mapping[str, np.ndarray] | None = None,
    types: "xarray.Dataset | None" = None,
    centre: float = 0.0,
    name: str = "",
) -> Panel:
    """One square a head, colours over `reach`, some heads framed; further numbers `beside` it under the pointer.

    `name` is what the scale of the colours says of them.

    With `types`, the Dataset of `head_types`, a dot on every head says what kind it is.
    """
    n_layers, n_heads = values.shape
    kinds = types_of_heads(types, values.shape)
    tips = [
        [_head_tip(layer, head, values, tip_values or {}, kinds) for head in range(n_heads)]
        for layer in range(n_layers)
    ]
    axes = (
        Axis("head", tuple(str(h) for h in range(n_heads))),
        Axis("", tuple(f"L{layer}" for layer in range(n_layers))),
    )
    cells = Cells(
        values, tips=tips, marked=framed_heads, low=value_range[0], high=value_range[1], centre=centre, name=name
    )
    return Panel(title, description, (cells, *type_dots(kinds)), *axes, height=max(0.8, (n_layers * 9 + 46) / 236))


def types_of_heads(types: "xarray.Dataset | None", shape: tuple[int, ...]) -> np.ndarray | None:
    """The name of every head's type, checked against the number of layers and heads."""
    if types is None:
        return None
    if "type" not in getattr(types, "data_vars", {}) or types.type.shape != shape:
        received = getattr(getattr(types, "type", None), "shape", type(types).__name__)
        raise RheoscopeError(
            Message(
                "types must have {layers} layers of {heads} heads, got {received}",
                layers=shape[0],
                heads=shape[1],
                received=str(received),
            ),
            Advice("types=rs.head_types(model)"),
        )
    return types.type.values


def type_dots(kinds: np.ndarray | None) -> list[Line]:
    """A dot on every head that has a type, a series a type."""
    if kinds is None:
        return []
    heads_by_type = {name: np.argwhere(kinds == name) for name in TYPE_COLOURS}
    return [
        Line(type_label(name), heads[:, 1], heads[:, 0], TYPE_COLOURS[name], "dots")
        for name, heads in heads_by_type.items()
        if len(heads)
    ]  # rows are layers


def type_label(kind: str) -> str:
    """A type in words.

    >>> type_label("previous_token")
    'previous-token'
    """
    return kind.replace("_", "-")


def _head_tip(
    layer: int, head: int, values: np.ndarray, tip_values: Mapping[str, np.ndarray], kinds: np.ndarray | None
) -> str:
    extras = "".join(f", {name} {format_value(float(table[layer, head]))}" for name, table in tip_values.items())
    kind_text = "" if kinds is None else f", {type_label(str(kinds[layer, head]))}"
    return f"L{layer}.H{head}: {format_value(float(values[layer, head]))}{extras}{kind_text}"
