"""Do the first tokens decide where the others settle? Angles between the same tokens under other beginnings, layer by layer."""

from typing import TYPE_CHECKING

from rheoscope.picture.picture import CLUSTERS, Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "The same tokens after other first tokens. Where they are read (first panel) and where they settle when the layer is applied again "
    "and again (second), beside the angle between two different tokens (dashed): as large as that, the beginning decides as much as "
    "which token it is. The last two panels are the layer itself under each beginning."
)
PANELS = {
    "change": "Read elsewhere, radians",
    "settled": "Settled elsewhere, radians",
    "residual": "How far from a fixed point",
    "jacobian_radius": "Radius of the Jacobian",
}


def picture(dataset: "xarray.Dataset") -> Picture:
    """A line a text, a panel a number."""
    return Picture("Do the first tokens decide?", CAPTION, tuple(_panel(dataset, *one) for one in PANELS.items()))


def _panel(dataset: "xarray.Dataset", name: str, title: str) -> Panel:
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    at = range(len(layers))
    lines = [
        Line(str(dataset.boundary.values[text]), at, dataset[name].values[text], CLUSTERS[text % len(CLUSTERS)])
        for text in range(dataset.sizes["text"])
        if dataset[name].values[text].any()  # the first text is what the others are compared with
    ]
    if f"{name}_null" in dataset:
        lines.append(Line("two different tokens", at, dataset[f"{name}_null"].values, "null", "dashed"))
    return Panel(title, dataset[name].attrs["definition"], tuple(lines), Axis("", layers), Axis(low=0.0))
