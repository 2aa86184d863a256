"""Does attention read similarity? Agreement of every head, raw and controlled side by side, heads beyond their null framed."""

from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.report.draw.notebook import in_notebook
from rheoscope.report.draw.paper import on_paper
from rheoscope.report.picture import Axis, Line, Panel, Picture
from rheoscope.report.plot.heads import head_map

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

CAPTION = (
    "Blue heads score those keys high that are like the query in E, orange ones those that are unlike it; white ones do not ask. The raw "
    "map counts nearness and length as similarity, the controlled one takes both out; framed heads lie beyond random heads of the same "
    "singular values at a false discovery rate of 5 %. Position alone is what nearness would explain; untrained is the same architecture "
    "at initial weights."
)
MAPS = {
    "agreement_raw": "Agreement, raw",
    "agreement": "Agreement, given distance and length",
    "agreement_untrained": "The same, untrained",
    "position_baseline": "Position alone",
    "agreement_embedding": "Agreement with the embedding",
}
LINES = {
    "agreement_raw": ("raw", "second"),
    "agreement": ("given distance and length", "first"),
    "agreement_embedding": ("with the embedding", "third"),
    "agreement_untrained": ("untrained", "fourth"),
}


def picture_agreement(dataset: "xarray.Dataset") -> Picture:
    """Maps of all heads and medians over depth, beside the null and the untrained control where there are any."""
    maps = [
        head_map(
            title,
            dataset[name].attrs["definition"],
            dataset[name].values,
            marked=beyond(dataset) if name == "agreement" else frozenset(),
        )
        for name, title in MAPS.items()
        if name in dataset
    ]
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    about = "Median over the heads of a layer. " + dataset.agreement.attrs["definition"]
    return Picture(
        "Does attention read similarity?",
        CAPTION,
        (*maps, Panel("Over depth", about, over_depth(dataset), Axis("", layers))),
    )


def beyond(dataset: "xarray.Dataset") -> frozenset[tuple[int, int]]:
    """The heads beyond their null at a false discovery rate of 5 %."""
    if "q_value" not in dataset:
        return frozenset()
    return frozenset((int(a), int(b)) for a, b in np.argwhere(dataset.q_value.values <= 0.05))


def over_depth(dataset: "xarray.Dataset") -> tuple[Line, ...]:
    """Medians over the heads of every layer."""
    at = range(dataset.sizes["layer"])
    lines = tuple(
        Line(title, at, dataset[name].median("head").values, colour)
        for name, (title, colour) in LINES.items()
        if name in dataset
    )
    if "null_sd" not in dataset:
        return lines
    edge = (dataset.null_mean + 2 * dataset.null_sd).median("head").values
    return (Line("null + 2 sd", at, edge, "null", "dashed"), *lines)


def plot_agreement(dataset: "xarray.Dataset") -> "Figure":
    """The picture with matplotlib, for papers."""
    return on_paper(picture_agreement(dataset))


def interactive_agreement(dataset: "xarray.Dataset") -> Any:
    """The picture with plotly, for notebooks."""
    return in_notebook(picture_agreement(dataset))
