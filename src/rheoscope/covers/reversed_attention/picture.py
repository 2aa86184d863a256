"""The picture of `reversed_attention`: the gradient norm of every head, and the gradient per layer and token."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, join
from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import Axis, Cells, Panel, Picture

if TYPE_CHECKING:
    import xarray

N_FRAMED = 5
"""The number of framed heads, those with the largest ‖R‖."""
CAPTION = Message(
    "R is the gradient of the loss by the attention scores (reversed attention). Heads with stronger colours have larger "
    "gradients, and the five largest are framed. The second map sums the absolute gradient over the heads of a layer, "
    "for every attended token."
)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """A map of heads and a map of tokens."""
    caption = CAPTION if types is None else join(" ", [CAPTION, TYPES_CAPTION])
    return Picture(
        Message("Gradient of the loss by the scores"), caption, (head_panel(dataset, types), token_map(dataset))
    )


def head_panel(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Panel:
    """‖R‖ with one cell per head."""
    values, rank = dataset.norm.values, dataset["rank"].values
    framed_heads = frozenset((int(a), int(b)) for a, b in np.argwhere(rank <= N_FRAMED))
    value_range = (0.0, max(float(values.max()), 1e-30))
    return head_map(
        Message("‖R‖ of every head"),
        dataset.norm.attrs["definition"],
        values,
        value_range,
        framed_heads,
        {Message("rank"): rank},
        types,
        name="‖R‖",
    )


def token_map(dataset: "xarray.Dataset") -> Panel:
    """The absolute gradient of every layer and attended token, summed over heads."""
    values = dataset.gradient_abs_sum.sum("head").values
    n_layers, n_tokens = values.shape
    tips = [
        [
            Message("L{layer}, token {token}: {value:.4g}", layer=layer, token=token, value=float(values[layer, token]))
            for token in range(n_tokens)
        ]
        for layer in range(n_layers)
    ]
    marks = (Cells(values, tips=tips, high=max(float(values.max()), 1e-30), name=Message("absolute gradient")),)
    description = dataset.gradient_abs_sum.attrs["definition"]
    axes = (
        Axis(Message("token"), tuple(map(str, range(n_tokens)))),
        Axis("", tuple(f"L{layer}" for layer in range(n_layers))),
    )
    height = max(0.8, (n_layers * 9 + 46) / 236)
    return Panel(Message("Absolute gradient per token"), description, marks, *axes, columns=2, height=height)
