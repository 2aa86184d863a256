"""Maps of one number per head (layers × heads), with optional dots for the types of heads."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message, Verbatim, join
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
"""The colour of each type of head, the same on every map. Mixed heads have no dot."""
TYPE_LABELS = {
    "previous_token": Message("previous-token"),
    "induction": Message("induction"),
    "duplicate_token": Message("duplicate-token"),
    "sink": Message("sink"),
    "local": Message("local"),
    "uniform": Message("uniform"),
    "mixed": Message("mixed"),
}
TYPES_CAPTION = Message("A dot marks the type of a head. Heads without a dot have no single type.")
"""Added to the caption of a picture whose maps show types."""
MIXED_COLOUR = "#c9cfda"
"""The colour of mixed heads in pictures where every head has a colour."""


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
    """One cell per head, coloured by its value.

    `value_range` are the ends of the colour scale, `centre` is its neutral value and `name` its label. `framed_heads` are
    outlined. `tip_values` are further numbers in the tooltip of each head, by label. `types` is the result of `head_types`:
    each head that has a type gets a dot.
    """
    n_layers, n_heads = values.shape
    kinds = types_of_heads(types, values.shape)
    tips = [
        [_head_tip(layer, head, values, tip_values or {}, kinds) for head in range(n_heads)]
        for layer in range(n_layers)
    ]
    axes = (
        Axis(Message("head"), tuple(str(h) for h in range(n_heads))),
        Axis("", tuple(f"L{layer}" for layer in range(n_layers))),
    )
    cells = Cells(
        values, tips=tips, marked=framed_heads, low=value_range[0], high=value_range[1], centre=centre, name=name
    )
    return Panel(title, description, (cells, *type_dots(kinds)), *axes, height=max(0.8, (n_layers * 9 + 46) / 236))


def types_of_heads(types: "xarray.Dataset | None", shape: tuple[int, ...]) -> np.ndarray | None:
    """The type of every head (layer, head), after a check that `types` belongs to a model of this shape."""
    if types is None:
        return None
    if "type" not in getattr(types, "data_vars", {}) or types.type.shape != shape:
        received = getattr(getattr(types, "type", None), "shape", type(types).__name__)
        raise RheoscopeError(
            Message(
                "types must have {layers} layers of {heads} heads, got {received}",
                layers=shape[0],
                heads=shape[1],
                received=Verbatim(received),
            ),
            Advice("types=rs.head_types(model)"),
        )
    return types.type.values


def type_dots(kinds: np.ndarray | None) -> list[Line]:
    """Dots on all heads that have a type, one series per type."""
    if kinds is None:
        return []
    heads_by_type = {name: np.argwhere(kinds == name) for name in TYPE_COLOURS}
    return [
        Line(type_label(name), heads[:, 1], heads[:, 0], TYPE_COLOURS[name], "dots")
        for name, heads in heads_by_type.items()
        if len(heads)
    ]


def type_label(kind: str) -> str:
    """The label of a type in legends and tooltips.

    >>> type_label("previous_token")
    'previous-token'
    """
    return TYPE_LABELS.get(kind, kind)


def _head_tip(
    layer: int, head: int, values: np.ndarray, tip_values: Mapping[str, np.ndarray], kinds: np.ndarray | None
) -> str:
    value = join(": ", [f"L{layer}.H{head}", format_value(float(values[layer, head]))])
    extras = [join(" ", [name, format_value(float(table[layer, head]))]) for name, table in tip_values.items()]
    kind_labels = [] if kinds is None else [type_label(str(kinds[layer, head]))]
    return join(", ", [value, *extras, *kind_labels])
