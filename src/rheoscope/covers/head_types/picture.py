"""What kind of heads they are: the type of every head, how types are spread over depth, and the scores behind them."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.head_map import MIXED_COLOUR, TYPE_COLOURS, head_map, type_label
from rheoscope.picture.picture import Axis, Line, Panel, Picture, Shape

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Each map is a score from 0 to 1, the stronger the colour the higher; a dot marks the heads of that type: their score reaches the "
    "threshold and is at least twice that of equal weights on all keys, and no sharper type is stronger. Probe: "
)
TITLES = {
    "previous_token": "Weight on the token before",
    "induction": "Weight on what came after (induction)",
    "duplicate_token": "Weight on the same token before",
    "sink": "Weight on the first token (sink)",
    "local": "Weight on near tokens (local)",
    "uniform": "Evenness of the weights (uniform)",
}


def picture(dataset: "xarray.Dataset") -> Picture:
    """Types over depth, then a map for every score, dots for the heads of that type."""
    maps = (score_map(dataset, name) for name in TITLES)
    return Picture("What kind of heads they are", f"{CAPTION}{dataset.attrs['probe']}.", (depth_panel(dataset), *maps))


def score_map(dataset: "xarray.Dataset", name: str) -> Panel:
    """One score, a square a head; a dot on the heads of that type."""
    null = f". Equal weights: {float(dataset[f'{name}_null'].mean()):.2f}" if f"{name}_null" in dataset else ""
    description = f"{dataset[name].attrs['definition']}{null}."
    panel = head_map(TITLES[name], description, dataset[name].values, (0.0, 1.0), name="score")
    typed_heads = np.argwhere(dataset.type.values == name)
    return replace(
        panel, marks=(*panel.marks, Line("", typed_heads[:, 1], typed_heads[:, 0], TYPE_COLOURS[name], "dots"))
    )


def depth_panel(dataset: "xarray.Dataset") -> Panel:
    """A bar a layer, as high as it has heads of each type."""
    kinds = dataset.type.values
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    marks, floor = [], np.zeros(len(layers))
    for name, colour in (*TYPE_COLOURS.items(), ("mixed", MIXED_COLOUR)):
        counts = (kinds == name).sum(1)
        for layer_index in np.flatnonzero(counts):
            low, high, tip = (
                floor[layer_index],
                floor[layer_index] + counts[layer_index],
                f"L{layer_index}: {counts[layer_index]} {type_label(name)}",
            )
            x, y = [layer_index - 0.4, layer_index + 0.4, layer_index + 0.4, layer_index - 0.4], [low, low, high, high]
            marks.append(Shape(type_label(name), x, y, colour, 0.9, tip))
        floor += counts
    description = "How many heads of each layer are of which type."
    return Panel("Types over depth", description, tuple(marks), Axis("", layers), Axis("heads", low=0.0), columns=3)
