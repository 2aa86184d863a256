"""The picture of `surgery`: costs and losses of the edit, random changes and ablations, or a map of heads."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, join, plural
from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CHANGE_NAMES = {
    "edit": Message("edit"),
    "size": Message("random, same singular values"),
    "cloud": Message("random, same size on the text"),
    "spectrum": Message("replacement, randomly rotated"),
    "mean": Message("mean ablation"),
    "uniform": Message("uniform attention"),
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
"""The largest number of heads that a title lists."""
JOINT_CAPTION = Message(
    "Cost of each change in nats per token, with 95 % intervals over texts. The edit is informative if it differs from random "
    "changes of the same size or spectrum (grey). The ablations show how much the heads matter at all."
)
PER_HEAD_CAPTION = Message(
    "One head changed at a time. Blue: the change raises the loss. Orange: it lowers the loss. Heads whose 95 % interval excludes 0 "
    "are framed. The other maps subtract the cost of a random change in the same head."
)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """Costs with their intervals and losses of every text, or maps of heads for `per_head=True`."""
    if "head_cost" in dataset:
        return per_head_picture(dataset, types)
    title = Message(
        "Cost of {replacement} in {heads}", replacement=dataset.attrs["replaces"], heads=heads_text(dataset)
    )
    return Picture(title, JOINT_CAPTION, (cost_panel(dataset), loss_panel(dataset)))


def heads_text(dataset: "xarray.Dataset") -> Message:
    """The changed heads for a title: all of them, their names, or their number if there are many."""
    names = str(dataset.attrs["heads"]).split()
    if names == ["all"]:
        return Message("all heads")
    if len(names) > MAX_NAMED_HEADS:
        return Message("{n} heads", n=len(names))
    return plural("head {names}", "heads {names}", n=len(names), names=", ".join(names))


def cost_panel(dataset: "xarray.Dataset") -> Panel:
    """One dot per change with its interval. The edit is on top."""
    marks, changes = [], [str(name) for name in dataset.change.values][::-1]
    for index, name in enumerate(changes):
        row = dataset.sel(change=name)
        cost, low, high = (float(row[field]) for field in ("cost", "cost_low", "cost_high"))
        tip = Message(
            "{change}: {cost:+.4f} ({low:+.4f} … {high:+.4f})",
            change=CHANGE_NAMES[name],
            cost=cost,
            low=low,
            high=high,
        )
        marks += [
            Line("", (low, high), (index, index), CHANGE_COLOURS[name], tip=tip),
            Line("", (cost,), (index,), CHANGE_COLOURS[name], "dots", tip),
        ]
    marks.append(Line("", (0.0, 0.0), (-0.5, len(changes) - 0.5), "null", "dashed"))
    y = Axis("", tuple(CHANGE_NAMES[name] for name in changes), low=-0.5, high=len(changes) - 0.5)
    description = dataset.cost.attrs["definition"]
    x = Axis(Message("nats per token"))
    return Panel(Message("Cost, nats per token"), description, tuple(marks), x, y, columns=2)


def loss_panel(dataset: "xarray.Dataset") -> Panel:
    """The loss of every text before and after the edit, and under the random change of the same size."""
    x = range(dataset.sizes["text"])
    lines = [
        Line(Message("before"), x, dataset.loss_before.values, "second", "dots"),
        Line(Message("after"), x, dataset.loss_after.values, "first", "dots"),
    ]
    if "loss_control" in dataset and "size" in dataset.control.values:
        lines.append(Line(Message("random"), x, dataset.loss_control.sel(control="size").values, "null", "dots"))
    text_axis = Axis(Message("text"), tuple(str(index) for index in x))
    return Panel(Message("Loss of every text"), dataset.loss_after.attrs["definition"], tuple(lines), text_axis)


def per_head_picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Picture:
    """The cost of the edit in each head, its excess over every other change, and sums over the heads of a layer."""
    cost_map = head_cost_map(dataset, "head_cost", "edit", Message("Cost of the edit, nats"), types)
    excess_maps = [
        head_cost_map(
            dataset,
            "head_excess",
            str(change),
            Message("Excess over {change}, nats", change=CHANGE_NAMES[str(change)]),
            types,
        )
        for change in dataset.change.values[1:]
    ]
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    lines = tuple(
        Line(
            CHANGE_NAMES[str(change)],
            range(len(layers)),
            dataset.head_cost.sel(change=change).sum("head").values,
            colour,
        )
        for change, colour in zip(dataset.change.values, SERIES_COLOURS, strict=False)
    )
    description = Message(
        "Sum over the heads of a layer: {definition}.", definition=dataset.head_cost.attrs["definition"]
    )
    depth_panel = Panel(Message("Over depth"), description, lines, Axis("", layers))
    caption = PER_HEAD_CAPTION if types is None else join(" ", [PER_HEAD_CAPTION, TYPES_CAPTION])
    return Picture(Message("Cost of changing each head alone"), caption, (cost_map, *excess_maps, depth_panel))


def head_cost_map(
    dataset: "xarray.Dataset", field: str, change: str, title: str, types: "xarray.Dataset | None"
) -> Panel:
    """One cell per head, framed if its interval excludes 0."""
    values, low, high = (dataset[f"{field}{end}"].sel(change=change).values for end in ("", "_low", "_high"))
    significant = np.argwhere((low > 0) | (high < 0))
    limit = float(np.nanquantile(np.abs(values), 0.98)) or 1.0  # so that a few heads do not dominate the scale
    framed_heads = frozenset((int(layer), int(head)) for layer, head in significant)
    interval: dict[str, np.ndarray] = {Message("from"): low, Message("to"): high}
    return head_map(
        title,
        dataset[field].attrs["definition"],
        values,
        (-limit, limit),
        framed_heads,
        interval,
        types,
        name=Message("nats"),
    )
