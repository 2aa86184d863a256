"""How the loss wants attention to change: how strongly it pulls at every head, and at which tokens."""

from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.report.draw.notebook import in_notebook
from rheoscope.report.draw.paper import on_paper
from rheoscope.report.picture import Axis, Cells, Panel, Picture

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

FRAMED = 5
"""Heads that are framed: the strongest."""
CAPTION = (
    "R is the gradient of the scores (reversed attention). Dark heads are those whose scores the loss would change most; the five "
    "strongest are framed. The second map says of which tokens: how strongly a layer is pulled at what it takes from each."
)


def picture_reversed_attention(dataset: "xarray.Dataset") -> Picture:
    """A map of heads and a map of tokens."""
    return Picture("How the loss wants scores to change", CAPTION, (heads(dataset), tokens(dataset)))


def heads(dataset: "xarray.Dataset") -> Panel:
    """‖R‖, one square a head."""
    values, rank = dataset.norm.values, dataset["rank"].values
    layers, count = values.shape
    tips = [[f"L{a}.H{b}: ‖R‖ {values[a, b]:.4g}, rank {rank[a, b]}" for b in range(count)] for a in range(layers)]
    marked = frozenset((int(a), int(b)) for a, b in np.argwhere(rank <= FRAMED))
    marks = (Cells(values, tips=tips, marked=marked, high=max(float(values.max()), 1e-30)),)
    return Panel(
        "‖R‖ of every head",
        dataset.norm.attrs["definition"],
        marks,
        *_sides(count, layers, "head"),
        height=_height(layers),
    )


def tokens(dataset: "xarray.Dataset") -> Panel:
    """What every layer's heads together are pulled at."""
    values = dataset.received.sum("head").values
    layers, count = values.shape
    tips = [[f"L{a}, token {b}: {values[a, b]:.4g}" for b in range(count)] for a in range(layers)]
    marks = (Cells(values, tips=tips, high=max(float(values.max()), 1e-30)),)
    about = dataset.received.attrs["definition"]
    return Panel(
        "Pull at every token", about, marks, *_sides(count, layers, "token"), columns=2, height=_height(layers)
    )


def _sides(count: int, layers: int, what: str) -> tuple[Axis, Axis]:
    return Axis(what, tuple(map(str, range(count)))), Axis("", tuple(f"L{layer}" for layer in range(layers)))


def _height(layers: int) -> float:
    return max(0.8, (layers * 9 + 46) / 236)


def plot_reversed_attention(dataset: "xarray.Dataset") -> "Figure":
    """The picture with matplotlib, for papers."""
    return on_paper(picture_reversed_attention(dataset))


def interactive_reversed_attention(dataset: "xarray.Dataset") -> Any:
    """The picture with plotly, for notebooks."""
    return in_notebook(picture_reversed_attention(dataset))
