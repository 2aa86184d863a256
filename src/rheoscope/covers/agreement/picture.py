"""Does attention read similarity? Agreement of every head, raw and controlled side by side, heads beyond their null framed."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Blue heads score those keys high that are like the query in E, orange ones those that are unlike it; the fainter its colour, the "
    "less a head asks. The raw map counts nearness and length as similarity, the controlled one takes both out; framed heads "
    "lie beyond random heads of the same singular values at a false discovery rate of 5 %. Position alone is what nearness would "
    "explain; untrained is the same architecture at initial weights."
)
MAP_TITLES = {
    "agreement": "Agreement, given distance and length",
    "z": "How far beyond random heads (z)",
    "agreement_raw": "Agreement, raw",
    "agreement_untrained": "The same as the first, untrained",
    "position_baseline": "Position alone",
    "agreement_embedding": "Agreement with the embedding",
}
LINE_STYLES = {
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
            significant_heads(dataset) if name == "agreement" else frozenset(),
            tip_values(dataset) if name == "agreement" else {},
            types,
            name="z" if name == "z" else "Spearman’s ρ",
        )
        for name, title in MAP_TITLES.items()
        if name in dataset
    ]
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    description = "Median over the heads of a layer. " + dataset.agreement.attrs["definition"]
    depth_panel = Panel("Over depth", description, depth_lines(dataset), Axis("", layers))
    caption = f"{CAPTION} {dataset.attrs['draws']} random heads for each.{TYPES_CAPTION * (types is not None)}"
    return Picture("Does attention read similarity?", caption, (*maps, depth_panel))


def over_texts(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """The same of means over several texts (`rs.over_texts(rs.agreement, traces)`), with their intervals under the pointer."""
    renames = {"agreement_z": "z", "agreement_q_value": "q_value"}
    base_picture = picture(dataset.rename({old: new for old, new in renames.items() if old in dataset}), types)
    return replace(base_picture, title=f"{base_picture.title} Means over {dataset.attrs['texts']} texts")


def significant_heads(dataset: "xarray.Dataset") -> frozenset[tuple[int, int]]:
    """The heads beyond their null at a false discovery rate of 5 %."""
    if "q_value" not in dataset:
        return frozenset()
    return frozenset((int(a), int(b)) for a, b in np.argwhere(dataset.q_value.values <= 0.05))


def tip_values(dataset: "xarray.Dataset") -> dict[str, np.ndarray]:
    """What the tip of a head adds: z, and both ends of the interval of a mean."""
    names = {"z": "z", "agreement_low": "from", "agreement_high": "to"}
    return {label: dataset[name].values for name, label in names.items() if name in dataset}


def depth_lines(dataset: "xarray.Dataset") -> tuple[Line, ...]:
    """Medians over the heads of every layer, and two standard deviations of the null on both sides."""
    x = range(dataset.sizes["layer"])
    null_edges = {"null + 2 sd": 2, "null − 2 sd": -2} if "null_sd" in dataset else {}
    null_lines = tuple(
        Line(title, x, (dataset.null_mean + k * dataset.null_sd).median("head").values, "null", "dashed")
        for title, k in null_edges.items()
    )
    return null_lines + tuple(
        Line(title, x, dataset[name].median("head").values, colour)
        for name, (title, colour) in LINE_STYLES.items()
        if name in dataset
    )
