"""The picture of `compare`: maps of changed heads and the divergence by depth, or the map of matched layers."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, join
from rheoscope.picture.field_panels import cell_panel, curve_panel
from rheoscope.picture.head_map import head_map
from rheoscope.picture.picture import Axis, Cells, Panel, Picture, format_value

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "Distances of weights are 0 for equal heads and about 1.41 for unrelated ones. Behaviour is compared on the points of the first "
    "model. Layers and heads without a common number are matched by the similarity of their clouds (RSA)."
)
HEAD_MAPS = {
    "M_distance_max": Message("Heads: M"),
    "F_distance": Message("Heads: F"),
    "attention": Message("Heads: attention"),
    "stream_change": Message("Heads: change of the stream"),
    "logit_change": Message("Heads: change of the logit"),
    "head_similarity": Message("Heads: most similar head"),
}
SCALE_LABELS = {
    "M_distance_max": Message("distance"),
    "F_distance": Message("distance"),
    "attention": Message("share of attention"),
    "stream_change": Message("share of the length"),
    "logit_change": Message("logits"),
    "head_similarity": Message("similarity"),
}
CURVES = {
    "divergence": ("step", Message("Divergence of the flows")),
    "shape_change": ("step", Message("Change of the clouds' shapes")),
    "mlp": ("layer", Message("Change of the MLPs")),
}


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """A map of heads for every kind of change, the curves over depth, and the maps of tokens and of layers."""
    panels = [changed_heads(dataset, name, label, types) for name, label in HEAD_MAPS.items() if name in dataset]
    panels += [
        replace(curve_panel(dataset, name, dim, ""), title=title)
        for name, (dim, title) in CURVES.items()
        if name in dataset
    ]
    panels += [token_map(dataset)] if "token_divergence" in dataset else []
    panels += [layer_map(dataset)] if "layer_similarity" in dataset else []
    return Picture(Message("Where the models differ: heads and depth"), CAPTION, tuple(panels))


def changed_heads(dataset: "xarray.Dataset", name: str, title: Message, types: "xarray.Dataset | None") -> Panel:
    """One cell per head, from 0 to the largest value."""
    values = dataset[name].values.astype(float)
    largest = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    low = -largest if (values < 0).any() else 0.0
    definition = dataset[name].attrs["definition"]
    return head_map(title, definition, values, (low, largest), types=types, name=SCALE_LABELS[name])


def token_map(dataset: "xarray.Dataset") -> Panel:
    """The divergence of every token after every step."""
    return replace(
        cell_panel(dataset, "token_divergence", "step"), title=Message("Divergence of every token"), columns=3
    )


def layer_map(dataset: "xarray.Dataset") -> Panel:
    """The similarity of every pair of layers."""
    values, other = dataset.layer_similarity.values, tuple(f"L{layer}" for layer in dataset.other_layer.values)
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    tips = [
        [join(": ", [join(", ", [row, column]), format_value(float(values[i, j]))]) for j, column in enumerate(other)]
        for i, row in enumerate(layers)
    ]
    cells = Cells(values, tips=tips, low=-1.0 if (values < 0).any() else 0.0, name=Message("similarity"))
    axes = Axis(Message("layer of the second model"), other), Axis(Message("layer of the first model"), layers)
    definition = dataset.layer_similarity.attrs["definition"]
    return Panel(Message("Similarity of layers"), definition, (cells,), *axes, height=1.2)
