"""What the heads of a layer see together: the geometry recovered by 1, 2, … heads, beside random heads and random projections."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.picture import Axis, Cells, Line, Mark, Panel, Picture, Shape, format_value

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "How much of the distances between tokens the images of several heads keep side by side: 1 is all of it. Greedy "
    "adds the head that helps most, random any; orthonormal counts every direction that a head reads once, as much as it may "
    "stretch it. Random heads have the same singular values; random projections stretch all directions alike. Bands hold all layers."
)
CURVE_STYLES = {
    "recovered_projection": ("random projections", "null", "dashed"),
    "recovered_null": ("random heads", "first", "dashed"),
    "recovered_orthonormal": ("orthonormal reads", "third", "solid"),
    "recovered": ("best first", "first", "solid"),
    "recovered_random": ("random order", "second", "solid"),
}


def picture(dataset: "xarray.Dataset") -> Picture:
    """Curves over the heads used, every layer as a map, all heads together over depth, and how much they overlap."""
    head_panels = recovery_panel(dataset), cka_panel(dataset), layer_map(dataset), best_and_all_panel(dataset)
    panels = (*head_panels, span_panel(dataset), cumulative_panel(dataset), overlap_panel(dataset))
    return Picture(f"What heads see together, as {_image_name(dataset)}", CAPTION, panels)


def recovery_panel(dataset: "xarray.Dataset") -> Panel:
    """Recovered by 1, 2, … heads: means over layers, and the band of all layers."""
    heads_used = dataset.heads_used.values
    recovered = dataset.recovered.values
    outline = np.concatenate([heads_used, heads_used[::-1]]), np.concatenate([recovered.min(0), recovered.max(0)[::-1]])
    lines = (
        Line(name, heads_used, dataset[field].mean("layer").values, colour, style)
        for field, (name, colour, style) in CURVE_STYLES.items()
        if field in dataset
    )
    marks: tuple[Mark, ...] = (Shape("", *outline, "first", 0.13, "best first: the band of all layers"), *lines)
    return Panel(
        "Distances recovered (RSA)", dataset.recovered.attrs["definition"], marks, _heads_axis(), Axis(high=1.03)
    )


def cka_panel(dataset: "xarray.Dataset") -> Panel:
    """The same by CKA."""
    heads_used = dataset.heads_used.values
    lines = [Line("best first", heads_used, dataset.recovered_cka.mean("layer").values, "first")]
    if "recovered_cka_null" in dataset:
        null = dataset.recovered_cka_null.mean("layer").values
        lines.insert(0, Line("random heads", heads_used, null, "first", "dashed"))
    description = dataset.recovered_cka.attrs["definition"]
    return Panel("Inner products recovered (CKA)", description, tuple(lines), _heads_axis(), Axis(high=1.03))


def layer_map(dataset: "xarray.Dataset") -> Panel:
    """A row a layer: what 1, 2, … heads recover, and which head is added."""
    values, order = dataset.recovered.values, dataset.head_order.values
    null_notes = [[f"; random {format_value(float(x))}" for x in row] for row in dataset.get("recovered_null", [])]
    tips = [
        [
            f"L{a}, {b + 1} heads: {format_value(float(values[a, b]))}, adds head "
            f"{int(order[a, b])}{null_notes[a][b] if null_notes else ''}"
            for b in range(values.shape[1])
        ]
        for a in range(values.shape[0])
    ]
    axes = Axis("heads used", tuple(map(str, dataset.heads_used.values))), Axis("", _layer_names(dataset))
    description = (
        "One square: how much the best so many heads of a layer recover. " + dataset.head_order.attrs["definition"]
    )
    height = max(0.8, (values.shape[0] * 9 + 46) / 236)
    return Panel(
        "Every layer, best heads first",
        description,
        (Cells(values, tips=tips, name="recovered"),),
        *axes,
        height=height,
    )


def best_and_all_panel(dataset: "xarray.Dataset") -> Panel:
    """One head and all heads of each layer."""
    x = range(dataset.sizes["layer"])
    lines = [
        Line("all heads", x, dataset.recovered.values[:, -1], "first"),
        Line("best head", x, dataset.recovered.values[:, 0], "third"),
    ]
    if "recovered_null" in dataset:
        lines.insert(0, Line("all, random heads", x, dataset.recovered_null.values[:, -1], "first", "dashed"))
    description = "Recovered by the best head of a layer and by all of them. " + dataset.recovered.attrs["definition"]
    return Panel(
        "One head and all of them", description, tuple(lines), Axis("", _layer_names(dataset)), Axis(high=1.03)
    )


def span_panel(dataset: "xarray.Dataset") -> Panel:
    """Which part of E the heads read at all."""
    heads_used = dataset.heads_used.values
    lines = (Line("span", heads_used, dataset.joint_rank_share.mean("layer").values, "second"),)
    description = f"Mean over layers. {dataset.joint_rank_share.attrs['definition']}."
    return Panel("How much of E is read at all", description, lines, _heads_axis(), Axis(low=0.0, high=1.03))


def cumulative_panel(dataset: "xarray.Dataset") -> Panel:
    """All heads of all layers so far, against the embeddings."""
    x = range(dataset.sizes["layer"])
    lines = (
        Line("clouds themselves", x, dataset.recovered_layers_null.values, "null", "dashed"),
        Line("all heads up to here", x, dataset.recovered_layers.values, "first"),
    )
    description = (
        f"{dataset.recovered_layers.attrs['definition']}. Dashed: {dataset.recovered_layers_null.attrs['definition']}."
    )
    return Panel(
        "Of the embedding, by all layers so far", description, lines, Axis("", _layer_names(dataset)), Axis(high=1.03)
    )


def overlap_panel(dataset: "xarray.Dataset") -> Panel:
    """How much two heads of a layer read the same directions."""
    x, n_heads = range(dataset.sizes["layer"]), dataset.sizes["head"]
    is_pair = ~np.eye(n_heads, dtype=bool)
    mean_overlap = dataset.overlap.values[:, is_pair].mean(1) if n_heads > 1 else np.full(len(x), np.nan)
    lines = (
        Line("random spaces", x, dataset.overlap_null.values, "null", "dashed"),
        Line("two heads of the layer", x, mean_overlap, "fourth"),
    )
    description = f"Mean over pairs of heads. {dataset.overlap.attrs['definition']}."
    return Panel("Do heads read the same?", description, lines, Axis("", _layer_names(dataset)), Axis(low=0.0))


def _image_name(dataset: "xarray.Dataset") -> str:
    return {"query": "queries", "key": "keys", "content": "content"}[str(dataset.attrs["image"])]


def _layer_names(dataset: "xarray.Dataset") -> tuple[str, ...]:
    return tuple(f"L{layer}" for layer in dataset.layer.values)


def _heads_axis() -> Axis:
    return Axis("heads used")
