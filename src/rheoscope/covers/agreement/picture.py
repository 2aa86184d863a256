"""Does attention read similarity? Agreement of every head, raw and controlled side by side, heads beyond their null framed."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.head_map import TYPED, head_map
from rheoscope.picture.picture import Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Blue heads score those keys high that are like the query in E, orange ones those that are unlike it; the fainter its colour, the "
    "less a head asks. The raw map counts nearness and length as similarity, the controlled one takes both out; framed heads "
    "lie beyond random heads of the same singular values at a false discovery rate of 5 %. Position alone is what nearness would "
    "explain; untrained is the same architecture at initial weights."
)
MAPS = {
    "agreement": "Agreement, given distance and length",
    "z": "How far beyond random heads (z)",
    "agreement_raw": "Agreement, raw",
    "agreement_untrained": "The same as the first, untrained",
    "position_baseline": "Position alone",
    "agreement_embedding": "Agreement with the embedding",
}
LINES = {
    "agreement_raw": ("raw", "second"),
    "agreement": ("given distance and length", "first"),
    "agreement_embedding": ("with the embedding", "third"),
    "agreement_untrained": ("untrained", "fourth"),
}


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """Maps of all heads and medians over depth, beside the null and the untrained control where there are any."""
    maps = [
        head_map(
            title,
            dataset[name].attrs["definition"],
            dataset[name].values,
            (-5.0, 5.0) if name == "z" else (-1.0, 1.0),
            beyond(dataset) if name == "agreement" else frozenset(),
            under_pointer(dataset) if name == "agreement" else {},
            types,
            name="z" if name == "z" else "Spearman’s ρ",
        )
        for name, title in MAPS.items()
        if name in dataset
    ]
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    about = "Median over the heads of a layer. " + dataset.agreement.attrs["definition"]
    over = Panel("Over depth", about, over_depth(dataset), Axis("", layers))
    caption = f"{CAPTION} {dataset.attrs['draws']} random heads for each.{TYPED * (types is not None)}"
    return Picture("Does attention read similarity?", caption, (*maps, over))


def over_texts(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """The same of means over several texts (`rs.over_texts(rs.agreement, traces)`), with their intervals under the pointer."""
    names = {"agreement_z": "z", "agreement_q_value": "q_value"}
    drawn = picture(dataset.rename({old: new for old, new in names.items() if old in dataset}), types)
    return replace(drawn, title=f"{drawn.title} Means over {dataset.attrs['texts']} texts")


def beyond(dataset: "xarray.Dataset") -> frozenset[tuple[int, int]]:
    """The heads beyond their null at a false discovery rate of 5 %."""
    if "q_value" not in dataset:
        return frozenset()
    return frozenset((int(a), int(b)) for a, b in np.argwhere(dataset.q_value.values <= 0.05))


def under_pointer(dataset: "xarray.Dataset") -> dict[str, np.ndarray]:
    """What the tip of a head adds: z, and both ends of the interval of a mean."""
    names = {"z": "z", "agreement_low": "from", "agreement_high": "to"}
    return {said: dataset[name].values for name, said in names.items() if name in dataset}


def over_depth(dataset: "xarray.Dataset") -> tuple[Line, ...]:
    """Medians over the heads of every layer, and two standard deviations of the null on both sides."""
    at = range(dataset.sizes["layer"])
    edges = {"null + 2 sd": 2, "null − 2 sd": -2} if "null_sd" in dataset else {}
    null = tuple(
        Line(title, at, (dataset.null_mean + k * dataset.null_sd).median("head").values, "null", "dashed")
        for title, k in edges.items()
    )
    return null + tuple(
        Line(title, at, dataset[name].median("head").values, colour)
        for name, (title, colour) in LINES.items()
        if name in dataset
    )
