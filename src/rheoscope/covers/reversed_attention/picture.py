"""How the loss wants attention to change: how strongly it pulls at every head, and at which tokens."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.head_map import TYPED, head_map
from rheoscope.picture.picture import Axis, Cells, Panel, Picture

if TYPE_CHECKING:
    import xarray

FRAMED = 5
"""Heads that are framed: the strongest."""
CAPTION = (
    "R is the gradient of the scores (reversed attention). In strong colours those whose scores the loss would change most; the five "
    "strongest are framed. The second map says of which tokens: how strongly a layer is pulled at what it takes from each."
)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """A map of heads and a map of tokens."""
    caption = CAPTION + TYPED * (types is not None)
    return Picture("How the loss wants scores to change", caption, (heads(dataset, types), tokens(dataset)))


def heads(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Panel:
    """‖R‖, one square a head."""
    values, rank = dataset.norm.values, dataset["rank"].values
    marked = frozenset((int(a), int(b)) for a, b in np.argwhere(rank <= FRAMED))
    reach = (0.0, max(float(values.max()), 1e-30))
    return head_map(
        "‖R‖ of every head", dataset.norm.attrs["definition"], values, reach, marked, {"rank": rank}, types, name="‖R‖"
    )


def tokens(dataset: "xarray.Dataset") -> Panel:
    """What every layer's heads together are pulled at."""
    values = dataset.received.sum("head").values
    layers, count = values.shape
    tips = [[f"L{a}, token {b}: {values[a, b]:.4g}" for b in range(count)] for a in range(layers)]
    marks = (Cells(values, tips=tips, high=max(float(values.max()), 1e-30), name="pull"),)
    about = dataset.received.attrs["definition"]
    sides = Axis("token", tuple(map(str, range(count)))), Axis("", tuple(f"L{layer}" for layer in range(layers)))
    return Panel("Pull at every token", about, marks, *sides, columns=2, height=max(0.8, (layers * 9 + 46) / 236))
