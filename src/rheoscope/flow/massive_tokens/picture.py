"""The tokens that are left out: how long they are and how much attention they take, over depth."""

from typing import TYPE_CHECKING

from rheoscope.picture.picture import CLUSTERS, Axis, Line, Panel, Picture, Word
from rheoscope.picture.token_labels import places, shown

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Tokens longer than five times the median at some step. Attention goes to them where it has nothing else to do, and a few "
    "coordinates of E hold nearly all of them."
)
BARE = Axis(bare=True, low=0.0, high=1.0)


def picture(dataset: "xarray.Dataset") -> Picture:
    """Lengths on a log axis, and shares of attention, a line a token; at most eight, the longest first."""
    if not dataset.sizes["token"]:
        said = f"no token is longer than {dataset.attrs['times']:g} times the median"
        empty = Panel(
            "Length over the median",
            f"There is nothing to draw: {said}.",
            (Word(0.5, 0.5, said, "middle"),),
            BARE,
            BARE,
            height=0.4,
        )
        return Picture("Massive tokens", CAPTION, (empty,))
    points, layers = tuple(places(dataset.point.values)), tuple(f"L{layer}" for layer in dataset.layer.values)
    first = dataset.largest.values.argsort()[::-1][: len(CLUSTERS)]
    lengths, mass = [], []
    for colour, at in zip(CLUSTERS, first, strict=False):
        name = f"{int(dataset.token[at])} {shown(dataset.attrs['tokens'][at])}"
        held = f"{100 * float(dataset.coordinate_share[at, 0]):.0f} % in coordinate {int(dataset.coordinate[at, 0])}"
        lengths.append(Line(f"{name}: {held}", range(len(points)), dataset.length.values[:, at], colour))
        mass.append(Line(name, range(len(layers)), dataset.sink_mass.values[:, at], colour))
    even = [1 / dataset.attrs["n"]] * len(layers)
    ends = tuple(at for at, name in enumerate(points) if " " not in name)
    return Picture(
        "Massive tokens",
        CAPTION,
        (
            Panel("Length over the median", dataset.length.attrs["definition"], tuple(lengths), Axis("", points, ends), Axis(log=True)),
            Panel(
                "Share of a layer's attention",
                dataset.sink_mass.attrs["definition"],
                (Line("the same for all", range(len(layers)), even, "null", "dashed"), *mass),
                Axis("", layers),
                Axis(low=0.0),
            ),
        ),
    )  # fmt: skip
