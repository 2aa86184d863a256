"""The picture of `head_types`: types per layer, and a map of every score with dots on the heads of that type."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.picture.head_map import MIXED_COLOUR, TYPE_COLOURS, head_map, type_label
from rheoscope.picture.picture import Axis, Line, Panel, Picture, Shape

if TYPE_CHECKING:
    import xarray

TITLES = {
    "previous_token": Message("Weight on the previous token"),
    "induction": Message("Weight on the token after an earlier copy (induction)"),
    "duplicate_token": Message("Weight on earlier copies (duplicate token)"),
    "sink": Message("Weight on the first token (sink)"),
    "local": Message("Weight on nearby tokens (local)"),
    "uniform": Message("Normalised entropy of the weights (uniform)"),
}


def picture(dataset: "xarray.Dataset") -> Picture:
    """The number of heads of each type per layer, then a map of every score."""
    caption = Message(
        "Each map shows a score from 0 to 1. A dot marks the heads of that type. Their score reaches the "
        "threshold and is at least twice that of uniform attention. No sharper type has a higher score. "
        "Measured on: {probe}.",
        probe=dataset.attrs["probe"],
    )
    maps = (score_map(dataset, name) for name in TITLES)
    return Picture(Message("Types of heads"), caption, (depth_panel(dataset), *maps))


def score_map(dataset: "xarray.Dataset", name: str) -> Panel:
    """One cell per head, and a dot on the heads of that type."""
    definition = dataset[name].attrs["definition"]
    description = Message("{definition}.", definition=definition)
    if f"{name}_null" in dataset:
        null = float(dataset[f"{name}_null"].mean())
        description = Message("{definition}. Uniform attention: {null:.2f}.", definition=definition, null=null)
    panel = head_map(TITLES[name], description, dataset[name].values, (0.0, 1.0), name=Message("score"))
    typed_heads = np.argwhere(dataset.type.values == name)
    return replace(
        panel, marks=(*panel.marks, Line("", typed_heads[:, 1], typed_heads[:, 0], TYPE_COLOURS[name], "dots"))
    )


def depth_panel(dataset: "xarray.Dataset") -> Panel:
    """One bar per layer, stacked from the number of heads of each type."""
    kinds = dataset.type.values
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    marks, floor = [], np.zeros(len(layers))
    for name, colour in (*TYPE_COLOURS.items(), ("mixed", MIXED_COLOUR)):
        counts = (kinds == name).sum(1)
        for layer_index in np.flatnonzero(counts):
            low, high, tip = (
                floor[layer_index],
                floor[layer_index] + counts[layer_index],
                Message(
                    "L{layer}: {n} {type}", layer=int(layer_index), n=int(counts[layer_index]), type=type_label(name)
                ),
            )
            x, y = [layer_index - 0.4, layer_index + 0.4, layer_index + 0.4, layer_index - 0.4], [low, low, high, high]
            marks.append(Shape(type_label(name), x, y, colour, 0.9, tip))
        floor += counts
    description = Message("The number of heads of each type in every layer.")
    heads_axis = Axis(Message("heads"), low=0.0)
    return Panel(Message("Types over depth"), description, tuple(marks), Axis("", layers), heads_axis, columns=3)
