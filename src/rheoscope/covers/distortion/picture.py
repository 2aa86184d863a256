"""The picture of distortion: maps of preserved distances, curves over depth with nulls, and the query–key mismatch."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, join
from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "Every head has three images of the cloud: queries x̂M, keys x̂Mᵀ and content x̂F. A value of 1 means that an image preserves "
    "all distances or all neighbours. Dashed lines are the same heads on randomly rotated clouds. Dashed grey lines are random "
    "projections of the same rank, which stretch all directions equally. Curves are medians over the heads of a layer."
)
IMAGE_COLOURS = {"query": "first", "key": "second", "content": "third"}
IMAGE_NAMES = {"query": Message("query"), "key": Message("key"), "content": Message("content")}
MAP_TITLES = {
    "query": Message("Distances preserved by queries (RSA)"),
    "key": Message("Distances preserved by keys (RSA)"),
    "content": Message("Distances preserved by content (RSA)"),
}
CURVE_TITLES = {
    "rsa": Message("Preserved distances (RSA)"),
    "neighbours": Message("Preserved neighbours"),
    "collapse": Message("Share of the variance that is not read"),
    "trustworthiness": Message("Trustworthiness"),
    "continuity": Message("Continuity"),
}
RANDOM_HEADS, RANDOM_PROJECTIONS = Message("random heads"), Message("random projections")


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """Maps of preserved distances, curves over depth with their nulls, and the mismatch of queries and keys."""
    maps = [
        head_map(title, dataset.rsa.attrs["definition"], dataset.rsa.sel(image=image).values, types=types, name="RSA")
        for image, title in MAP_TITLES.items()
    ]
    curves = (depth_panel(dataset, name, title) for name, title in CURVE_TITLES.items())
    caption = join(" ", [CAPTION, *([] if types is None else [TYPES_CAPTION])])
    title = Message("How projections change the geometry")
    return Picture(title, caption, (*maps, *curves, mismatch_panel(dataset)))


def depth_panel(dataset: "xarray.Dataset", name: str, title: str) -> Panel:
    """The median head of each layer, one line per image, with dashed nulls if they were drawn."""
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    x, null = range(len(layers)), dataset.get(f"{name}_null")
    lines = [
        Line(IMAGE_NAMES[image], x, dataset[name].sel(image=image).median("head").values, colour)
        for image, colour in IMAGE_COLOURS.items()
    ]
    dashed_lines = [] if null is None else null_lines(null.median("head"), x, RANDOM_HEADS)
    projection_null = dataset.get(f"{name}_projection")
    dashed_lines += [] if projection_null is None else null_lines(projection_null, x, RANDOM_PROJECTIONS)
    definition = dataset[name].attrs["definition"]
    description = (
        definition
        if null is None
        else Message("{definition}. Dashed: {null}.", definition=definition, null=null.attrs["definition"])
    )
    y = Axis(high=1.03 if name != "collapse" else 1.0)
    return Panel(title, description, (*dashed_lines, *lines), Axis("", layers), y)


def null_lines(null: "xarray.DataArray", x: range, source: Message) -> list[Line]:
    """One dashed line per image, or a single line if all images have the same null."""
    rows = {image: null.sel(image=image).values for image in IMAGE_COLOURS}
    if all(np.allclose(row, rows["query"]) for row in rows.values()):
        return [Line(source, x, rows["query"], "null", "dashed")]
    return [
        Line(
            Message("{image}, {source}", image=IMAGE_NAMES[image], source=source),
            x,
            row,
            IMAGE_COLOURS[image],
            "dashed",
        )
        for image, row in rows.items()
    ]


def mismatch_panel(dataset: "xarray.Dataset") -> Panel:
    """The mismatch of queries and keys, and the trace share, over depth."""
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    x = range(len(layers))
    lines = (
        Line(Message("random subspaces"), x, dataset.mismatch_null.median("head").values, "null", "dashed"),
        Line(Message("mismatch"), x, dataset.mismatch.median("head").values, "fourth"),
        Line("tr M / ‖M‖_*", x, dataset.trace_share.median("head").values, "fifth"),
    )
    description = Message(
        "Mismatch: {mismatch}. Trace share: {trace_share}.",
        mismatch=dataset.mismatch.attrs["definition"],
        trace_share=dataset.trace_share.attrs["definition"],
    )
    return Panel(Message("Do queries and keys read the same subspace?"), description, lines, Axis("", layers))
