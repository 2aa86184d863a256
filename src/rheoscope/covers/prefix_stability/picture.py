"""The picture of `prefix_stability`: maps of stability and its null, and both over depth."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message, join
from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "The same text alone and after other prefixes. Blue heads rank the same pairs of tokens alike in all of them. The null compares other "
    "tokens at the same distances. A head that is as blue there depends on position, not on the tokens."
)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """Maps of all heads, and medians over the heads of every layer."""
    stability, null = dataset.stability, dataset.stability_null
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    x = range(len(layers))
    lines = (
        Line(Message("position alone"), x, null.mean("prefix").median("head").values, "null", "dashed"),
        Line(Message("the same tokens"), x, stability.mean("prefix").median("head").values, "first"),
        Line(
            Message("the prefix with the lowest stability"), x, stability.median("head").min("prefix").values, "second"
        ),
    )
    description = Message(
        "Median over the heads of a layer. Stability: {definition}.", definition=stability.attrs["definition"]
    )
    scale_name = Message("Spearman’s ρ")
    maps = (
        head_map(title, field.attrs["definition"], field.mean("prefix").values, types=types, name=scale_name)
        for title, field in ((Message("The same tokens"), stability), (Message("Position alone"), null))
    )
    return Picture(
        Message("Are scores stable under another prefix?"),
        CAPTION if types is None else join(" ", [CAPTION, TYPES_CAPTION]),
        (*maps, Panel(Message("Over depth"), description, lines, Axis("", layers))),
    )
