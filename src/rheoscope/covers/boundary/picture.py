"""The picture of boundary: angles between the same tokens after different prefixes, layer by layer."""

from textwrap import shorten
from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

LEGEND_LETTERS = 40
"""The most letters of a prefix in a legend."""
CAPTION = Message(
    "The same tokens after different prefixes. The first panel compares them at the layer's input, the second after repeated "
    "application of the layer. The dashed line is the angle between two different tokens. An angle that large means that the "
    "prefix matters as much as the identity of the token. The last two panels show the layer map for each prefix."
)
PANEL_TITLES = {
    "input_angle": Message("Angle at the input, radians"),
    "final_angle": Message("Angle after repeated application, radians"),
    "residual": Message("Distance from a fixed point"),
    "jacobian_radius": Message("Spectral radius of the Jacobian"),
}


def picture(dataset: "xarray.Dataset") -> Picture:
    """One panel per field, with one line per text."""
    panels = tuple(_field_panel(dataset, name, title) for name, title in PANEL_TITLES.items() if name in dataset)
    return Picture(Message("Does the prefix decide where tokens converge?"), CAPTION, panels)


def _field_panel(dataset: "xarray.Dataset", name: str, title: Message) -> Panel:
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    x = range(len(layers))
    lines = [
        Line(
            shorten(str(dataset.boundary.values[text_index]), LEGEND_LETTERS, placeholder=" …"),
            x,
            dataset[name].values[text_index],
            SERIES_COLOURS[text_index % len(SERIES_COLOURS)],
        )
        for text_index in range(dataset.sizes["text"])
        if dataset[name].values[text_index].any()  # the first text has angle 0 to itself
    ]
    if f"{name}_null" in dataset:
        lines.append(Line(Message("two different tokens"), x, dataset[f"{name}_null"].values, "null", "dashed"))
    return Panel(title, dataset[name].attrs["definition"], tuple(lines), Axis("", layers), Axis(low=0.0))
