"""The picture of `compare`: maps of changed heads and the divergence by depth, or the map of matched layers."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.picture.field_panels import cell_panel, curve_panel
from rheoscope.picture.head_map import head_map
from rheoscope.picture.picture import Panel, Picture

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


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """A map of heads for every kind of change, the curves over depth, and the maps of tokens and of layers."""
    panels = [changed_heads(dataset, name, label, types) for name, label in HEAD_MAPS.items() if name in dataset]
    panels += [curve_panel(dataset, name, "step", "") for name in ("divergence", "shape_change") if name in dataset]
    panels += [curve_panel(dataset, "mlp", "layer", "")] if "mlp" in dataset else []
    panels += [
        cell_panel(dataset, name, row)
        for name, row in (("token_divergence", "step"), ("layer_similarity", "layer"))
        if name in dataset
    ]
    return Picture(Message("What differs between two models"), CAPTION, tuple(panels))


def changed_heads(dataset: "xarray.Dataset", name: str, title: Message, types: "xarray.Dataset | None") -> Panel:
    """One cell per head, from 0 to the largest value."""
    values = dataset[name].values.astype(float)
    largest = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    low = -largest if (values < 0).any() else 0.0
    definition = dataset[name].attrs["definition"]
    return head_map(title, definition, values, (low, largest), types=types, name=SCALE_LABELS[name])
