"""What a change of M or F costs: the edit beside random changes and ablations, text by text, or in every head alone."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CHANGE_NAMES = {
    "edit": "edit",
    "size": "random, same size",
    "cloud": "random, as large",
    "spectrum": "turned at random",
    "mean": "mean ablation",
    "uniform": "even attention",
}
CHANGE_COLOURS = {
    "edit": "first",
    "size": "null",
    "cloud": "null",
    "spectrum": "null",
    "mean": "second",
    "uniform": "third",
}
MAX_NAMED_HEADS = 6
"""Heads that a title can name."""
JOINT_CAPTION = (
    "Nats per token that a change costs, with 95 % bootstrap intervals over texts. The edit says something of the model where it lies "
    "apart from random changes (grey: of the same size in E, as large on the text, of the same spectrum); the ablations say what the "
    "heads are worth at all."
)
PER_HEAD_CAPTION = (
    "One head changed at a time. Blue heads cost loss when they are changed, orange ones save some; framed where the bootstrap interval "
    "leaves 0 out. The maps after the first take away what another change costs in the same head: what is left belongs to this change."
)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """Costs with their intervals and the losses of every text; maps where every head was changed alone (`per_head=True`)."""
    if "head_cost" in dataset:
        return per_head_picture(dataset, types)
    title = f"What it costs: {dataset.attrs['replaces']} in {heads_text(dataset)}"
    return Picture(title, JOINT_CAPTION, (cost_panel(dataset), loss_panel(dataset)))


def heads_text(dataset: "xarray.Dataset") -> str:
    """The changed heads in words: all, their names, or how many where names would fill the title."""
    names = str(dataset.attrs["heads"]).split()
    if names == ["all"]:
        return "all heads"
    return f"{len(names)} heads" if len(names) > MAX_NAMED_HEADS else f"head{'s' * (len(names) > 1)} {', '.join(names)}"


def cost_panel(dataset: "xarray.Dataset") -> Panel:
    """A dot a change, and its interval; the edit on top."""
    marks, changes = [], [str(name) for name in dataset.change.values][::-1]
    for index, name in enumerate(changes):
        row = dataset.sel(change=name)
        cost, low, high = (float(row[field]) for field in ("cost", "cost_low", "cost_high"))
        tip = f"{CHANGE_NAMES[name]}: {cost:+.4f} ({low:+.4f} … {high:+.4f})"
        marks += [
            Line("", (low, high), (index, index), CHANGE_COLOURS[name], tip=tip),
            Line("", (cost,), (index,), CHANGE_COLOURS[name], "dots", tip),
        ]
    marks.append(Line("", (0.0, 0.0), (-0.5, len(changes) - 0.5), "null", "dashed"))
    y = Axis("", tuple(CHANGE_NAMES[name] for name in changes), low=-0.5, high=len(changes) - 0.5)
    description = dataset.cost.attrs["definition"]
    return Panel("Cost, nats per token", description, tuple(marks), Axis("nats per token"), y, columns=2)


def loss_panel(dataset: "xarray.Dataset") -> Panel:
    """The loss of every text, before and after, and under the random change of the same size."""
    x = range(dataset.sizes["text"])
    lines = [
        Line("before", x, dataset.loss_before.values, "second", "dots"),
        Line("after", x, dataset.loss_after.values, "first", "dots"),
    ]
    if "loss_control" in dataset and "size" in dataset.control.values:
        lines.append(Line("random", x, dataset.loss_control.sel(control="size").values, "null", "dots"))
    text_axis = Axis("piece of text", tuple(str(index) for index in x))
    return Panel("Loss of every text", dataset.loss_after.attrs["definition"], tuple(lines), text_axis)


def per_head_picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Picture:
    """Cost of the edit in each head, what it costs beyond every other change, and the sums over the heads of every layer."""
    cost_map = head_cost_map(dataset, "head_cost", "edit", "Cost of the edit, nats", types)
    excess_maps = [
        head_cost_map(dataset, "head_excess", str(change), f"Beyond the control {str(change)!r}, nats", types)
        for change in dataset.change.values[1:]
    ]
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    lines = tuple(
        Line(str(change), range(len(layers)), dataset.head_cost.sel(change=change).sum("head").values, colour)
        for change, colour in zip(dataset.change.values, SERIES_COLOURS, strict=False)
    )
    description = f"Summed over the heads of a layer. {dataset.head_cost.attrs['definition']}"
    depth_panel = Panel("Over depth", description, lines, Axis("", layers))
    return Picture(
        "What each head's change costs alone",
        PER_HEAD_CAPTION + TYPES_CAPTION * (types is not None),
        (cost_map, *excess_maps, depth_panel),
    )


def head_cost_map(
    dataset: "xarray.Dataset", field: str, change: str, title: str, types: "xarray.Dataset | None"
) -> Panel:
    """One square a head, framed where the interval leaves 0 out."""
    values, low, high = (dataset[f"{field}{end}"].sel(change=change).values for end in ("", "_low", "_high"))
    significant = np.argwhere((low > 0) | (high < 0))
    limit = float(np.nanquantile(np.abs(values), 0.98)) or 1.0  # a few heads would bleach all others
    framed_heads = frozenset((int(layer), int(head)) for layer, head in significant)
    interval = {"from": low, "to": high}
    return head_map(
        title, dataset[field].attrs["definition"], values, (-limit, limit), framed_heads, interval, types, name="nats"
    )
