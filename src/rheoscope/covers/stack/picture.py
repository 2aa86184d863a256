"""The picture of `stack`: the geometry that 1, 2, … heads recover, over depth, and the overlap of heads."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.picture.picture import Axis, Cells, Line, Mark, Panel, Picture, Shape, format_value

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "The correlation of the distances between tokens in the joint image of several heads and in E. Greedy adds the best head next. "
    "Orthonormal counts every direction that a head reads once. Random heads have the same singular values. Random projections stretch "
    "all directions equally. The band covers all layers."
)
CURVE_STYLES = {
    "recovered_projection": (Message("random projections"), "null", "dashed"),
    "recovered_null": (Message("random heads"), "first", "dashed"),
    "recovered_orthonormal": (Message("orthonormal"), "third", "solid"),
    "recovered": (Message("greedy order"), "first", "solid"),
    "recovered_random": (Message("random order"), "second", "solid"),
}
TITLES = {
    "query": Message("Geometry that heads recover together (queries)"),
    "key": Message("Geometry that heads recover together (keys)"),
    "content": Message("Geometry that heads recover together (content)"),
}


def picture(dataset: "xarray.Dataset") -> Picture:
    """Curves over the number of heads, a map of layers, curves over depth, and the overlap of heads."""
    head_panels = recovery_panel(dataset), cka_panel(dataset), layer_map(dataset), best_and_all_panel(dataset)
    panels = (*head_panels, joint_rank_panel(dataset), cumulative_panel(dataset), overlap_panel(dataset))
    return Picture(TITLES[str(dataset.attrs["projection"])], CAPTION, panels)


def recovery_panel(dataset: "xarray.Dataset") -> Panel:
    """`recovered` of 1, 2, … heads: means over layers, and the band of all layers."""
    heads_used = dataset.heads_used.values
    recovered = dataset.recovered.values
    outline = np.concatenate([heads_used, heads_used[::-1]]), np.concatenate([recovered.min(0), recovered.max(0)[::-1]])
    lines = (
        Line(name, heads_used, dataset[field].mean("layer").values, colour, style)
        for field, (name, colour, style) in CURVE_STYLES.items()
        if field in dataset
    )
    band = Shape("", *outline, "first", 0.13, Message("greedy order: the range over layers"))
    marks: tuple[Mark, ...] = (band, *lines)
    title, description = Message("Distances recovered (RSA)"), dataset.recovered.attrs["definition"]
    return Panel(title, description, marks, _heads_axis(), Axis(high=1.03))


def cka_panel(dataset: "xarray.Dataset") -> Panel:
    """`recovered_cka` of 1, 2, … heads."""
    heads_used = dataset.heads_used.values
    lines = [Line(Message("greedy order"), heads_used, dataset.recovered_cka.mean("layer").values, "first")]
    if "recovered_cka_null" in dataset:
        null = dataset.recovered_cka_null.mean("layer").values
        lines.insert(0, Line(Message("random heads"), heads_used, null, "first", "dashed"))
    description = dataset.recovered_cka.attrs["definition"]
    return Panel(Message("Inner products recovered (CKA)"), description, tuple(lines), _heads_axis(), Axis(high=1.03))


def layer_map(dataset: "xarray.Dataset") -> Panel:
    """One row per layer: `recovered` of 1, 2, … heads, with the added head in the tip."""
    values = dataset.recovered.values
    null = dataset.recovered_null.values if "recovered_null" in dataset else None
    tips = cell_tips(values, dataset.head_order.values, null)
    axes = _heads_axis(tuple(map(str, dataset.heads_used.values))), Axis("", _layer_names(dataset))
    description = Message(
        "Each cell is the value of recovered with the first heads of a layer. The order: {definition}.",
        definition=dataset.head_order.attrs["definition"],
    )
    cells = Cells(values, tips=tips, name=Message("recovered"))
    height = max(0.8, (values.shape[0] * 9 + 46) / 236)
    return Panel(Message("Every layer, heads in greedy order"), description, (cells,), *axes, height=height)


def cell_tips(values: np.ndarray, head_order: np.ndarray, null: np.ndarray | None) -> list[list[Message]]:
    """`recovered` after one more head, that head, and the value of random heads."""

    def cell_tip(layer: int, step: int) -> Message:
        parameters = {"layer": layer, "n": step + 1, "value": format_value(float(values[layer, step]))}
        parameters["head"] = int(head_order[layer, step])
        if null is None:
            return Message("L{layer}, {n} heads: {value}, adds head {head}", **parameters)
        null_value = format_value(float(null[layer, step]))
        return Message(
            "L{layer}, {n} heads: {value}, adds head {head} (random heads {null})", **parameters, null=null_value
        )

    return [[cell_tip(layer, step) for step in range(values.shape[1])] for layer in range(values.shape[0])]


def best_and_all_panel(dataset: "xarray.Dataset") -> Panel:
    """The best head and all heads of each layer."""
    x = range(dataset.sizes["layer"])
    lines = [
        Line(Message("all heads"), x, dataset.recovered.values[:, -1], "first"),
        Line(Message("best head"), x, dataset.recovered.values[:, 0], "third"),
    ]
    if "recovered_null" in dataset:
        null = dataset.recovered_null.values[:, -1]
        lines.insert(0, Line(Message("all random heads"), x, null, "first", "dashed"))
    description = Message(
        "The best head of a layer, and all of its heads: {definition}.",
        definition=dataset.recovered.attrs["definition"],
    )
    title, layer_axis = Message("Best head and all heads"), Axis("", _layer_names(dataset))
    return Panel(title, description, tuple(lines), layer_axis, Axis(high=1.03))


def joint_rank_panel(dataset: "xarray.Dataset") -> Panel:
    """The share of the dimensions of E that the heads read."""
    heads_used = dataset.heads_used.values
    lines = (Line(Message("joint rank"), heads_used, dataset.joint_rank_share.mean("layer").values, "second"),)
    description = Message("Mean over layers: {definition}.", definition=dataset.joint_rank_share.attrs["definition"])
    y = Axis(low=0.0, high=1.03)
    return Panel(Message("Share of the dimensions that heads read"), description, lines, _heads_axis(), y)


def cumulative_panel(dataset: "xarray.Dataset") -> Panel:
    """All heads of all layers so far, compared with the embeddings."""
    x = range(dataset.sizes["layer"])
    lines = (
        Line(Message("layer inputs"), x, dataset.recovered_layers_null.values, "null", "dashed"),
        Line(Message("all heads so far"), x, dataset.recovered_layers.values, "first"),
    )
    description = Message(
        "{definition}. Dashed: {null}.",
        definition=dataset.recovered_layers.attrs["definition"],
        null=dataset.recovered_layers_null.attrs["definition"],
    )
    title, layer_axis = Message("Embedding recovered by all layers so far"), Axis("", _layer_names(dataset))
    return Panel(title, description, lines, layer_axis, Axis(high=1.03))


def overlap_panel(dataset: "xarray.Dataset") -> Panel:
    """The mean overlap of two heads of a layer."""
    x, n_heads = range(dataset.sizes["layer"]), dataset.sizes["head"]
    is_pair = ~np.eye(n_heads, dtype=bool)
    mean_overlap = dataset.overlap.values[:, is_pair].mean(1) if n_heads > 1 else np.full(len(x), np.nan)
    lines = (
        Line(Message("random spaces"), x, dataset.overlap_null.values, "null", "dashed"),
        Line(Message("two heads of the layer"), x, mean_overlap, "fourth"),
    )
    description = Message("Mean over pairs of heads: {definition}.", definition=dataset.overlap.attrs["definition"])
    return Panel(Message("Overlap of heads"), description, lines, Axis("", _layer_names(dataset)), Axis(low=0.0))


def _layer_names(dataset: "xarray.Dataset") -> tuple[str, ...]:
    return tuple(f"L{layer}" for layer in dataset.layer.values)


def _heads_axis(names: tuple[str, ...] = ()) -> Axis:
    return Axis(Message("heads used"), names)
