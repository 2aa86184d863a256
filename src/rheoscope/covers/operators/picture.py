"""The picture of `operators`: one map of layers x heads per field, and the singular values."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, join
from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import Axis, Line, Panel, Picture, Shape

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "One cell per head. Blue lies above the value of a random operator, orange below. That value is one half for the positive share and "
    "0 for the others (1/d for symmetry). Higher stable ranks have a stronger colour. Bands cover 10 to 90 % of the heads."
)
TITLES = {
    "symmetry": Message("Symmetry of M"),
    "positive_share": Message("Positive share of M (null .5)"),
    "directionality": Message("Directionality of M"),
    "copying": Message("Copying of F"),
    "alignment": Message("Alignment cos⟨F, Mᵀ⟩"),
    "stable_rank_M": Message("Stable rank of M"),
    "stable_rank_F": Message("Stable rank of F"),
}
SCALE_NAMES = {
    "symmetry": Message("symmetry"),
    "positive_share": Message("share"),
    "directionality": Message("directionality"),
    "copying": Message("copying"),
    "alignment": Message("cosine"),
    "stable_rank_M": Message("directions"),
    "stable_rank_F": Message("directions"),
}
"""The quantity on the colour scale of every map."""


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """Maps of all heads, and the singular values of M and F."""
    title = Message(
        "{model}: {layers} layers x {heads} heads as operators",
        model=dataset.attrs.get("model", ""),
        layers=dataset.sizes["layer"],
        heads=dataset.sizes["head"],
    )
    caption = CAPTION if types is None else join(" ", [CAPTION, TYPES_CAPTION])
    maps = (head_panel(dataset, name, types) for name in TITLES)
    return Picture(title, caption, (*maps, spectrum_panel(dataset)))


def head_panel(dataset: "xarray.Dataset", name: str, types: "xarray.Dataset | None") -> Panel:
    """One field as a map with one cell per head."""
    values, centre = dataset[name].values, 0.5 if name == "positive_share" else 0.0
    value_range = (0.0, float(values.max())) if "rank" in name else (-1.0, 1.0) if not centre else (0.0, 1.0)
    return head_map(
        TITLES[name],
        dataset[name].attrs["definition"],
        values,
        value_range,
        types=types,
        centre=centre,
        name=SCALE_NAMES[name],
    )


def spectrum_panel(dataset: "xarray.Dataset") -> Panel:
    """The singular values relative to each head's largest: the median over heads, and a band."""
    marks: list[Shape | Line] = []
    for operator, colour in (("M", "first"), ("F", "second")):
        values = dataset[f"singular_values_{operator}"].values
        values = values.reshape(-1, values.shape[-1])
        low, median, high = np.quantile(values / np.maximum(values[:, :1], 1e-30), (0.1, 0.5, 0.9), axis=0)
        rank, positive = np.arange(1, len(median) + 1), low > 0
        outline = (
            np.concatenate([rank[positive], rank[positive][::-1]]),
            np.concatenate([low[positive], high[positive][::-1]]),
        )
        marks += [
            Shape("", *outline, colour, 0.15, Message("{operator}: 10 to 90 % of the heads", operator=operator)),
            Line(operator, rank, median, colour),
        ]
    description = Message(
        "Singular values in descending order, relative to each head's largest. Line: median over all heads. Band: 10 to 90 % of them."
    )
    x = Axis(Message("rank"))
    return Panel(Message("Singular values"), description, tuple(marks), x, Axis(log=True), columns=2)
