"""Every head of a model as an operator: one map of heads x layers per number, and the fall of the singular values."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import Axis, Line, Panel, Picture, Shape

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "One square a head. Blue is above what random operators give, orange below: 0 for directionality, copying and alignment and, but for "
    "1/d, for symmetry, one half for the positive share; the stronger its colour, the higher a rank. Bands hold 10 to 90 % of the heads."
)
TITLES = {
    "symmetry": "Symmetry of M",
    "positive_share": "Positive share of M (null .5)",
    "directionality": "Directionality of M",
    "copying": "Copying of F",
    "alignment": "Alignment cos⟨F, Mᵀ⟩",
    "stable_rank_M": "Stable rank of M",
    "stable_rank_F": "Stable rank of F",
}
SCALE_NAMES = {
    "symmetry": "symmetry",
    "positive_share": "share",
    "directionality": "directionality",
    "copying": "copying",
    "alignment": "cosine",
    "stable_rank_M": "directions",
    "stable_rank_F": "directions",
}
"""What the colours of every map measure."""


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """Maps of all heads, and the singular values of M and F."""
    title = f"{dataset.attrs.get('model', '')}: {dataset.sizes['layer']} layers x {dataset.sizes['head']} heads as operators"
    maps = (head_panel(dataset, name, types) for name in TITLES)
    return Picture(title, CAPTION + TYPES_CAPTION * (types is not None), (*maps, spectrum_panel(dataset)))


def head_panel(dataset: "xarray.Dataset", name: str, types: "xarray.Dataset | None") -> Panel:
    """One square a head."""
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
    """Median over heads of the singular values, each head's largest set to 1."""
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
            Shape("", *outline, colour, 0.15, f"{operator}: 10 to 90 % of the heads"),
            Line(operator, rank, median, colour),
        ]
    description = (
        "Singular values in falling order, each head's largest set to 1: median over all heads, and 10 to 90 % of them."
    )
    return Panel("Singular values", description, tuple(marks), Axis("rank"), Axis(log=True), columns=2)
