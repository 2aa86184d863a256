"""Do the first tokens decide where the others settle? Angles between the same tokens under other beginnings, layer by layer."""

from typing import TYPE_CHECKING

from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "The same tokens after other first tokens. Where they are read (first panel) and where they settle when the layer is applied again "
    "and again (second), beside the angle between two different tokens (dashed): as large as that, the beginning decides as much as "
    "which token it is. The last two panels are the layer itself under each beginning."
)
PANEL_TITLES = {
    "change": "Read elsewhere, radians",
    "settled": "Settled elsewhere, radians",
    "residual": "How far from a fixed point",
    "jacobian_radius": "Radius of the Jacobian",
}


def picture(dataset: "xarray.Dataset") -> Picture:
    """A line a text, a panel a number."""
    return Picture(
        "Do the first tokens decide?", CAPTION, tuple(_field_panel(dataset, *entry) for entry in PANEL_TITLES.items())
    )


def _field_panel(dataset: "xarray.Dataset", name: str, title: str) -> Panel:
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    x = range(len(layers))
    lines = [
        Line(
            str(dataset.boundary.values[text_index]),
            x,
            dataset[name].values[text_index],
            SERIES_COLOURS[text_index % len(SERIES_COLOURS)],
        )
        for text_index in range(dataset.sizes["text"])
        if dataset[name].values[text_index].any()  # the first text is what the others are compared with
    ]
    if f"{name}_null" in dataset:
        lines.append(Line("two different tokens", x, dataset[f"{name}_null"].values, "null", "dashed"))
    return Panel(title, dataset[name].attrs["definition"], tuple(lines), Axis("", layers), Axis(low=0.0))
