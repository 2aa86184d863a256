"""The plot of `massive_tokens`: their relative norms and the attention they receive, over depth."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.picture.picture import SERIES_COLOURS, Axis, Label, Line, Panel, Picture
from rheoscope.picture.token_labels import display_token, step_names

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "Tokens whose norm exceeds a multiple of the median norm at some step. They often act as attention sinks, and a few "
    "coordinates of E hold most of their norm."
)
BARE_AXIS = Axis(bare=True, low=0.0, high=1.0)


def picture(dataset: "xarray.Dataset") -> Picture:
    """Relative norms on a log axis and shares of attention, one line per token. At most the eight largest are drawn."""
    if not dataset.sizes["token"]:
        message = Message(
            "No token has a norm above {ratio:g} times the median.", ratio=float(dataset.attrs["norm_ratio"])
        )
        empty = Panel(
            Message("Norm relative to the median"),
            message,
            (Label(0.5, 0.5, message, "middle"),),
            BARE_AXIS,
            BARE_AXIS,
            height=0.4,
        )
        return Picture(Message("Massive tokens"), CAPTION, (empty,))
    points, layers = tuple(step_names(dataset.point.values)), tuple(f"L{layer}" for layer in dataset.layer.values)
    order = dataset.max_relative_norm.values.argsort()[::-1][: len(SERIES_COLOURS)]
    norms, mass = [], []
    for colour, index in zip(SERIES_COLOURS, order, strict=False):
        name = f"{int(dataset.token[index])} {display_token(dataset.attrs['tokens'][index])}"
        norm_label = Message(
            "{token}: {percent:.0f} % in coordinate {coordinate}",
            token=name,
            percent=100 * float(dataset.coordinate_share[index, 0]),
            coordinate=int(dataset.coordinate[index, 0]),
        )
        norms.append(Line(norm_label, range(len(points)), dataset.relative_norm.values[:, index], colour))
        mass.append(Line(name, range(len(layers)), dataset.sink_mass.values[:, index], colour))
    uniform_share = [1 / dataset.attrs["n"]] * len(layers)
    layer_ends = tuple(step_index for step_index, name in enumerate(points) if " " not in name)
    return Picture(
        Message("Massive tokens"),
        CAPTION,
        (
            Panel(
                Message("Norm relative to the median"),
                dataset.relative_norm.attrs["definition"],
                tuple(norms),
                Axis("", points, layer_ends),
                Axis(log=True),
            ),
            Panel(
                Message("Share of the layer's attention"),
                dataset.sink_mass.attrs["definition"],
                (Line(Message("uniform attention"), range(len(layers)), uniform_share, "null", "dashed"), *mass),
                Axis("", layers),
                Axis(low=0.0),
            ),
        ),
    )
