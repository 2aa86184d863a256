"""What projections do to the geometry: what every head's images keep of it, beside random heads and random projections."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Every head sees the cloud through three images: as queries x̂M, as keys x̂Mᵀ, as content x̂F. 1 where an image "
    "keeps all distances, or all neighbours; dashed: the same heads turned at random, of the same singular values, and, grey, random "
    "projections to as many dimensions, which stretch all directions alike. Curves are medians over the heads of a layer."
)
IMAGE_COLOURS = {"query": "first", "key": "second", "content": "third"}
MAP_TITLES = {
    "query": "Distances kept as queries (RSA)",
    "key": "Distances kept as keys (RSA)",
    "content": "Distances kept as content (RSA)",
}
CURVE_TITLES = {
    "rsa": "Distances kept (RSA)",
    "neighbours": "Neighbours kept",
    "collapse": "Share of the variance out of sight",
    "trustworthiness": "Not glued (trustworthiness)",
    "continuity": "Not torn (continuity)",
}


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """Maps of the distances kept, curves over depth beside their nulls, and how queries lie to keys."""
    maps = [
        head_map(title, dataset.rsa.attrs["definition"], dataset.rsa.sel(image=image).values, types=types, name="RSA")
        for image, title in MAP_TITLES.items()
    ]
    curves = (depth_panel(dataset, name, title) for name, title in CURVE_TITLES.items())
    caption = CAPTION + TYPES_CAPTION * (types is not None)
    return Picture("What projections do to the geometry", caption, (*maps, *curves, mismatch_panel(dataset)))


def depth_panel(dataset: "xarray.Dataset", name: str, title: str) -> Panel:
    """The median head of each layer, a line an image, the nulls dashed where they were drawn."""
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    x, null = range(len(layers)), dataset.get(f"{name}_null")
    lines = [
        Line(image, x, dataset[name].sel(image=image).median("head").values, colour)
        for image, colour in IMAGE_COLOURS.items()
    ]
    dashed_lines = [] if null is None else null_lines(null.median("head"), x, "heads")
    projection_null = dataset.get(f"{name}_projection")
    dashed_lines += [] if projection_null is None else null_lines(projection_null, x, "projections")
    description = f"{dataset[name].attrs['definition']}." + (
        "" if null is None else f" Dashed: {null.attrs['definition']}."
    )
    return Panel(
        title, description, (*dashed_lines, *lines), Axis("", layers), Axis(high=1.03 if name != "collapse" else 1.0)
    )


def null_lines(null: "xarray.DataArray", x: range, source: str) -> list[Line]:
    """One line for all images where they have one null, or one for each."""
    rows = {image: null.sel(image=image).values for image in IMAGE_COLOURS}
    if all(np.allclose(row, rows["query"]) for row in rows.values()):
        return [Line(f"random {source}", x, rows["query"], "null", "dashed")]
    return [Line(f"{image}, random {source}", x, row, IMAGE_COLOURS[image], "dashed") for image, row in rows.items()]


def mismatch_panel(dataset: "xarray.Dataset") -> Panel:
    """Do queries and keys read one space?"""
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    x = range(len(layers))
    lines = (
        Line("random spaces", x, dataset.mismatch_null.median("head").values, "null", "dashed"),
        Line("mismatch", x, dataset.mismatch.median("head").values, "fourth"),
        Line("tr M / ‖M‖_*", x, dataset.trace_share.median("head").values, "fifth"),
    )
    description = f"Mismatch: {dataset.mismatch.attrs['definition']}. {dataset.trace_share.attrs['definition']}."
    return Panel("Do queries and keys read one space?", description, lines, Axis("", layers))
