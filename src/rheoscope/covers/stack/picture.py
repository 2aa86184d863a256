"""What the heads of a layer see together: the geometry recovered by 1, 2, … heads, beside random heads and random projections."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.picture import Axis, Cells, Line, Mark, Panel, Picture, Shape, number

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "How much of the distances between tokens the images of several heads keep side by side: 1 is all of it. Greedy "
    "adds the head that helps most, random any; orthonormal counts every direction that a head reads once, as much as it may "
    "stretch it. Random heads have the same singular values; random projections stretch all directions alike. Bands hold all layers."
)
CURVES = {
    "recovered_projection": ("random projections", "null", "dashed"),
    "recovered_null": ("random heads", "first", "dashed"),
    "recovered_orthonormal": ("orthonormal reads", "third", "solid"),
    "recovered": ("best first", "first", "solid"),
    "recovered_random": ("random order", "second", "solid"),
}


def picture(dataset: "xarray.Dataset") -> Picture:
    """Curves over the heads used, every layer as a map, all heads together over depth, and how much they overlap."""
    of_heads = curve(dataset), linear(dataset), layers(dataset), together(dataset)
    panels = (*of_heads, spanned(dataset), so_far(dataset), shared(dataset))
    return Picture(f"What heads see together, as {_image(dataset)}", CAPTION, panels)


def curve(dataset: "xarray.Dataset") -> Panel:
    """Recovered by 1, 2, … heads: means over layers, and the band of all layers."""
    used = dataset.heads_used.values
    table = dataset.recovered.values
    band = np.concatenate([used, used[::-1]]), np.concatenate([table.min(0), table.max(0)[::-1]])
    lines = (
        Line(name, used, dataset[field].mean("layer").values, colour, style)
        for field, (name, colour, style) in CURVES.items()
        if field in dataset
    )
    marks: tuple[Mark, ...] = (Shape("", *band, "first", 0.13, "best first: the band of all layers"), *lines)
    return Panel("Distances recovered (RSA)", dataset.recovered.attrs["definition"], marks, _heads(), Axis(high=1.03))


def linear(dataset: "xarray.Dataset") -> Panel:
    """The same by CKA."""
    used = dataset.heads_used.values
    lines = [Line("best first", used, dataset.recovered_cka.mean("layer").values, "first")]
    if "recovered_cka_null" in dataset:
        null = dataset.recovered_cka_null.mean("layer").values
        lines.insert(0, Line("random heads", used, null, "first", "dashed"))
    about = dataset.recovered_cka.attrs["definition"]
    return Panel("Inner products recovered (CKA)", about, tuple(lines), _heads(), Axis(high=1.03))


def layers(dataset: "xarray.Dataset") -> Panel:
    """A row a layer: what 1, 2, … heads recover, and which head is added."""
    values, order = dataset.recovered.values, dataset.order.values
    beside = [[f"; random {number(float(x))}" for x in row] for row in dataset.get("recovered_null", [])]
    tips = [
        [
            f"L{a}, {b + 1} heads: {number(float(values[a, b]))}, adds head {int(order[a, b])}{beside[a][b] if beside else ''}"
            for b in range(values.shape[1])
        ]
        for a in range(values.shape[0])
    ]
    sides = Axis("heads used", tuple(map(str, dataset.heads_used.values))), Axis("", _layers(dataset))
    about = "One square: how much the best so many heads of a layer recover. " + dataset.order.attrs["definition"]
    height = max(0.8, (values.shape[0] * 9 + 46) / 236)
    return Panel(
        "Every layer, best heads first", about, (Cells(values, tips=tips, name="recovered"),), *sides, height=height
    )


def together(dataset: "xarray.Dataset") -> Panel:
    """One head and all heads of each layer."""
    at = range(dataset.sizes["layer"])
    lines = [
        Line("all heads", at, dataset.recovered.values[:, -1], "first"),
        Line("best head", at, dataset.recovered.values[:, 0], "third"),
    ]
    if "recovered_null" in dataset:
        lines.insert(0, Line("all, random heads", at, dataset.recovered_null.values[:, -1], "first", "dashed"))
    about = "Recovered by the best head of a layer and by all of them. " + dataset.recovered.attrs["definition"]
    return Panel("One head and all of them", about, tuple(lines), Axis("", _layers(dataset)), Axis(high=1.03))


def spanned(dataset: "xarray.Dataset") -> Panel:
    """Which part of E the heads read at all."""
    used = dataset.heads_used.values
    lines = (Line("span", used, dataset.span.mean("layer").values, "second"),)
    about = f"Mean over layers. {dataset.span.attrs['definition']}."
    return Panel("How much of E is read at all", about, lines, _heads(), Axis(low=0.0, high=1.03))


def so_far(dataset: "xarray.Dataset") -> Panel:
    """All heads of all layers so far, against the embeddings."""
    at = range(dataset.sizes["layer"])
    lines = (
        Line("clouds themselves", at, dataset.recovered_layers_null.values, "null", "dashed"),
        Line("all heads up to here", at, dataset.recovered_layers.values, "first"),
    )
    about = (
        f"{dataset.recovered_layers.attrs['definition']}. Dashed: {dataset.recovered_layers_null.attrs['definition']}."
    )
    return Panel("Of the embedding, by all layers so far", about, lines, Axis("", _layers(dataset)), Axis(high=1.03))


def shared(dataset: "xarray.Dataset") -> Panel:
    """How much two heads of a layer read the same directions."""
    at, heads = range(dataset.sizes["layer"]), dataset.sizes["head"]
    pairs = ~np.eye(heads, dtype=bool)
    mean = dataset.overlap.values[:, pairs].mean(1) if heads > 1 else np.full(len(at), np.nan)
    lines = (
        Line("random spaces", at, dataset.overlap_null.values, "null", "dashed"),
        Line("two heads of the layer", at, mean, "fourth"),
    )
    about = f"Mean over pairs of heads. {dataset.overlap.attrs['definition']}."
    return Panel("Do heads read the same?", about, lines, Axis("", _layers(dataset)), Axis(low=0.0))


def _image(dataset: "xarray.Dataset") -> str:
    return {"query": "queries", "key": "keys", "content": "content"}[str(dataset.attrs["image"])]


def _layers(dataset: "xarray.Dataset") -> tuple[str, ...]:
    return tuple(f"L{layer}" for layer in dataset.layer.values)


def _heads() -> Axis:
    return Axis("heads used")
