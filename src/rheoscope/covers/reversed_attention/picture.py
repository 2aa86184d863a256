"""How the loss wants attention to change: how strongly it pulls at every head, and at which tokens."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import Axis, Cells, Panel, Picture

if TYPE_CHECKING:
    import xarray

N_FRAMED = 5
"""Heads that are framed: the strongest."""
CAPTION = (
    "R is the gradient of the scores (reversed attention). In strong colours those whose scores the loss would change most; the five "
    "strongest are framed. The second map says of which tokens: how strongly a layer is pulled at what it takes from each."
)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """A map of heads and a map of tokens."""
    caption = CAPTION + TYPES_CAPTION * (types is not None)
    return Picture("How the loss wants scores to change", caption, (head_panel(dataset, types), token_map(dataset)))


def head_panel(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Panel:
    """‖R‖, one square a head."""
    values, rank = dataset.norm.values, dataset["rank"].values
    framed_heads = frozenset((int(a), int(b)) for a, b in np.argwhere(rank <= N_FRAMED))
    value_range = (0.0, max(float(values.max()), 1e-30))
    return head_map(
        "‖R‖ of every head",
        dataset.norm.attrs["definition"],
        values,
        value_range,
        framed_heads,
        {"rank": rank},
        types,
        name="‖R‖",
    )


def token_map(dataset: "xarray.Dataset") -> Panel:
    """What every layer's heads together are pulled at."""
    values = dataset.gradient_abs_sum.sum("head").values
    n_layers, n_tokens = values.shape
    tips = [[f"L{a}, token {b}: {values[a, b]:.4g}" for b in range(n_tokens)] for a in range(n_layers)]
    marks = (Cells(values, tips=tips, high=max(float(values.max()), 1e-30), name="pull"),)
    description = dataset.gradient_abs_sum.attrs["definition"]
    axes = Axis("token", tuple(map(str, range(n_tokens)))), Axis("", tuple(f"L{layer}" for layer in range(n_layers)))
    return Panel(
        "Pull at every token", description, marks, *axes, columns=2, height=max(0.8, (n_layers * 9 + 46) / 236)
    )
