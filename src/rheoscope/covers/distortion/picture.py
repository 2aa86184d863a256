"""What projections do to the geometry: what every head's images keep of it, beside random heads and random projections."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.head_map import TYPED, head_map
from rheoscope.picture.picture import Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Every head sees the cloud through three images: as queries x̂M, as keys x̂Mᵀ, as content x̂F. 1 where an image "
    "keeps all distances, or all neighbours; dashed: the same heads turned at random, of the same singular values, and, grey, random "
    "projections to as many dimensions, which stretch all directions alike. Curves are medians over the heads of a layer."
)
IMAGES = {"query": "first", "key": "second", "content": "third"}
MAPS = {
    "query": "Distances kept as queries (RSA)",
    "key": "Distances kept as keys (RSA)",
    "content": "Distances kept as content (RSA)",
}
CURVES = {
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
        for image, title in MAPS.items()
    ]
    curves = (over_depth(dataset, name, title) for name, title in CURVES.items())
    caption = CAPTION + TYPED * (types is not None)
    return Picture("What projections do to the geometry", caption, (*maps, *curves, apart(dataset)))


def over_depth(dataset: "xarray.Dataset", name: str, title: str) -> Panel:
    """The median head of each layer, a line an image, the nulls dashed where they were drawn."""
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    at, null = range(len(layers)), dataset.get(f"{name}_null")
    lines = [
        Line(image, at, dataset[name].sel(image=image).median("head").values, colour)
        for image, colour in IMAGES.items()
    ]
    chance = [] if null is None else nulls(null.median("head"), at, "heads")
    blank = dataset.get(f"{name}_projection")
    chance += [] if blank is None else nulls(blank, at, "projections")
    about = f"{dataset[name].attrs['definition']}." + ("" if null is None else f" Dashed: {null.attrs['definition']}.")
    return Panel(title, about, (*chance, *lines), Axis("", layers), Axis(high=1.03 if name != "collapse" else 1.0))


def nulls(null: "xarray.DataArray", at: range, what: str) -> list[Line]:
    """One line for all images where they have one null, or one for each."""
    rows = {image: null.sel(image=image).values for image in IMAGES}
    if all(np.allclose(row, rows["query"]) for row in rows.values()):
        return [Line(f"random {what}", at, rows["query"], "null", "dashed")]
    return [Line(f"{image}, random {what}", at, row, IMAGES[image], "dashed") for image, row in rows.items()]


def apart(dataset: "xarray.Dataset") -> Panel:
    """Do queries and keys read one space?"""
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    at = range(len(layers))
    lines = (
        Line("random spaces", at, dataset.mismatch_null.median("head").values, "null", "dashed"),
        Line("mismatch", at, dataset.mismatch.median("head").values, "fourth"),
        Line("tr M / ‖M‖_*", at, dataset.trace_share.median("head").values, "fifth"),
    )
    about = f"Mismatch: {dataset.mismatch.attrs['definition']}. {dataset.trace_share.attrs['definition']}."
    return Panel("Do queries and keys read one space?", about, lines, Axis("", layers))
