"""Does attention read similarity? Agreement of every head, raw and controlled side by side, heads beyond their null framed."""

from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.report.draw.notebook import in_notebook
from rheoscope.report.draw.paper import on_paper
from rheoscope.report.picture import Axis, Line, Panel, Picture
from rheoscope.report.plot.heads import TYPED, head_map

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

CAPTION = (
    "Blue heads score those keys high that are like the query in E, orange ones those that are unlike it; white ones do not ask. The raw "
    "map counts nearness and length as similarity, the controlled one takes both out; framed heads lie beyond random heads of the same "
    "singular values at a false discovery rate of 5 %. Position alone is what nearness would explain."
)
MAPS = {
    "agreement": "Agreement, given distance and length",
    "z": "How far beyond random heads (z)",
    "agreement_raw": "Agreement, raw",
    "position_baseline": "Position alone",
    "agreement_embedding": "Agreement with the embedding",
}


def picture_agreement(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """Maps of all heads, and medians over depth beside the null."""
    shown = [name for name in MAPS if name in dataset]
    sure = dataset.q_value.values <= 0.05 if "q_value" in dataset else np.zeros(dataset.agreement.shape, dtype=bool)
    beyond = frozenset((int(a), int(b)) for a, b in np.argwhere(sure))
    maps = [
        head_map(
            MAPS[name],
            dataset[name].attrs["definition"],
            dataset[name].values,
            (-5.0, 5.0) if name == "z" else (-1.0, 1.0),
            beyond if name == "agreement" else frozenset(),
            {other: dataset[other].values for other in ("z",) if other in dataset and name == "agreement"},
            types,
        )
        for name in shown
    ]
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    at = range(len(layers))
    edge = {"null + 2 sd": 2, "null − 2 sd": -2} if "null_sd" in dataset else {}
    lines = (
        *(
            Line(name, at, (dataset.null_mean + k * dataset.null_sd).median("head").values, "null", "dashed")
            for name, k in edge.items()
        ),
        Line("raw", at, dataset.agreement_raw.median("head").values, "second"),
        Line("given distance and length", at, dataset.agreement.median("head").values, "first"),
        Line("with the embedding", at, dataset.agreement_embedding.median("head").values, "third"),
    )
    about = "Median over the heads of a layer. " + dataset.agreement.attrs["definition"]
    over = Panel("Over depth", about, lines, Axis("", layers))
    caption = f"{CAPTION} {dataset.attrs['draws']} random heads for each.{TYPED * (types is not None)}"
    return Picture("Does attention read similarity?", caption, (*maps, over))


def plot_agreement(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> "Figure":
    """The picture with matplotlib, for papers; `types=rs.head_types(model)` marks the types of heads."""
    return on_paper(picture_agreement(dataset, types))


def interactive_agreement(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Any:
    """The picture with plotly, for notebooks; `types=rs.head_types(model)` marks the types of heads."""
    return in_notebook(picture_agreement(dataset, types))
