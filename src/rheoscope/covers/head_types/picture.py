"""What kind of heads they are: the type of every head, how types are spread over depth, and the scores behind them."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.head_map import COLOURS, MIXED, head_map, said
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
    maps = (scores(dataset, name) for name in TITLES)
    return Picture("What kind of heads they are", f"{CAPTION}{dataset.attrs['probe']}.", (depth(dataset), *maps))


def scores(dataset: "xarray.Dataset", name: str) -> Panel:
    """One score, a square a head; a dot on the heads of that type."""
    null = f". Equal weights: {float(dataset[f'{name}_null'].mean()):.2f}" if f"{name}_null" in dataset else ""
    about = f"{dataset[name].attrs['definition']}{null}."
    panel = head_map(TITLES[name], about, dataset[name].values, (0.0, 1.0), name="score")
    own = np.argwhere(dataset.type.values == name)
    return replace(panel, marks=(*panel.marks, Line("", own[:, 1], own[:, 0], COLOURS[name], "dots")))


def depth(dataset: "xarray.Dataset") -> Panel:
    """A bar a layer, as high as it has heads of each type."""
    kinds = dataset.type.values
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    marks, floor = [], np.zeros(len(layers))
    for name, colour in (*COLOURS.items(), ("mixed", MIXED)):
        count = (kinds == name).sum(1)
        for at in np.flatnonzero(count):
            low, high, tip = floor[at], floor[at] + count[at], f"L{at}: {count[at]} {said(name)}"
            x, y = [at - 0.4, at + 0.4, at + 0.4, at - 0.4], [low, low, high, high]
            marks.append(Shape(said(name), x, y, colour, 0.9, tip))
        floor += count
    about = "How many heads of each layer are of which type."
    return Panel("Types over depth", about, tuple(marks), Axis("", layers), Axis("heads", low=0.0), columns=3)
