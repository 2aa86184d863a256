"""The tokens that are left out: how long they are and how much attention they take, over depth."""

from typing import TYPE_CHECKING

from rheoscope.picture.picture import SERIES_COLOURS, Axis, Label, Line, Panel, Picture
from rheoscope.picture.token_labels import display_token, step_names

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Tokens longer than five times the median at some step. Attention goes to them where it has nothing else to do, and a few "
    "coordinates of E hold nearly all of them."
)
BARE_AXIS = Axis(bare=True, low=0.0, high=1.0)


def picture(dataset: "xarray.Dataset") -> Picture:
    """Lengths on a log axis, and shares of attention, a line a token; at most eight, the longest first."""
    if not dataset.sizes["token"]:
        message = f"no token is longer than {dataset.attrs['times']:g} times the median"
        empty = Panel(
            "Length over the median",
            f"There is nothing to draw: {message}.",
            (Label(0.5, 0.5, message, "middle"),),
            BARE_AXIS,
            BARE_AXIS,
            height=0.4,
        )
        return Picture("Massive tokens", CAPTION, (empty,))
    points, layers = tuple(step_names(dataset.point.values)), tuple(f"L{layer}" for layer in dataset.layer.values)
    order = dataset.largest.values.argsort()[::-1][: len(SERIES_COLOURS)]
    lengths, mass = [], []
    for colour, index in zip(SERIES_COLOURS, order, strict=False):
        name = f"{int(dataset.token[index])} {display_token(dataset.attrs['tokens'][index])}"
        coordinate_text = (
            f"{100 * float(dataset.coordinate_share[index, 0]):.0f} % in coordinate {int(dataset.coordinate[index, 0])}"
        )
        lengths.append(Line(f"{name}: {coordinate_text}", range(len(points)), dataset.length.values[:, index], colour))
        mass.append(Line(name, range(len(layers)), dataset.sink_mass.values[:, index], colour))
    uniform_share = [1 / dataset.attrs["n"]] * len(layers)
    layer_ends = tuple(step_index for step_index, name in enumerate(points) if " " not in name)
    return Picture(
        "Massive tokens",
        CAPTION,
        (
            Panel(
                "Length over the median",
                dataset.length.attrs["definition"],
                tuple(lengths),
                Axis("", points, layer_ends),
                Axis(log=True),
            ),
            Panel(
                "Share of a layer's attention",
                dataset.sink_mass.attrs["definition"],
                (Line("the same for all", range(len(layers)), uniform_share, "null", "dashed"), *mass),
                Axis("", layers),
                Axis(low=0.0),
            ),
        ),
    )
