"""Must tokens stay themselves? κ and the identity share beside their nulls, what moving costs, and who would swap."""

from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.report.draw.notebook import in_notebook
from rheoscope.report.draw.paper import on_paper
from rheoscope.report.picture import CLUSTERS, Axis, Line, Panel, Picture, Word
from rheoscope.report.tokens import places, shown

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

CAPTION = (
    "From cloud to cloud, the optimal coupling finds the cheapest way to get the same set of places, whoever goes there. κ is "
    "1 where every token keeping its identity is that way, and 0 where it is no better than pairing at random. Its null "
    "permutes the same displacements among the tokens: only a gap between the two lines says something about who moves where."
)
MOST = 28
"""Swapping tokens that one chart can name."""


def picture_transport(dataset: "xarray.Dataset") -> Picture:
    """Over strides, layer by layer, and the layer with most swaps."""
    panels = (
        strided(dataset, "kappa", "κ over strides"),
        strided(dataset, "identity_share", "Tokens that stay in place"),
        stepwise(dataset),
        costs(dataset),
        swaps(dataset),
    )
    return Picture("Must tokens stay themselves?", CAPTION, panels)


def strided(dataset: "xarray.Dataset", name: str, title: str) -> Panel:
    """Mean over all pairs of layers that far apart, and the null."""
    strides = tuple(str(stride) for stride in dataset.stride.values)
    at = range(len(strides))
    value, null = (np.nanmean(dataset[f"{field}_strided"].values, axis=1) for field in (name, f"{name}_null"))
    lines = Line("null", at, null, "null", "dashed"), Line(title.split()[0], at, value)
    what, at_random = (dataset[field].attrs["definition"] for field in (name, f"{name}_null"))
    about = f"{what}; mean over all pairs of clouds so many layers apart. Null: {at_random}."
    return Panel(title, about, lines, Axis("layers apart", strides), Axis(high=1.03))


def stepwise(dataset: "xarray.Dataset") -> Panel:
    names = tuple(places(dataset.step.values))
    lines = (
        Line("κ null", range(len(names)), dataset.kappa_null.values, "null", "dashed"),
        Line("κ", range(len(names)), dataset.kappa.values),
    )
    return Panel("κ of every layer", dataset.kappa.attrs["definition"], lines, Axis("", names), Axis(high=1.03))


def costs(dataset: "xarray.Dataset") -> Panel:
    names = tuple(places(dataset.step.values))
    fields = {
        "random_cost": ("random", "null"),
        "identity_cost": ("identity", "second"),
        "w2_squared": ("W₂²", "first"),
    }
    lines = tuple(
        Line(said, range(len(names)), dataset[name].values, colour, "dashed" if name == "random_cost" else "solid")
        for name, (said, colour) in fields.items()
    )
    about = "; ".join(f"{said}: {dataset[name].attrs['definition']}" for name, (said, _) in fields.items())
    return Panel("What moving costs", about, lines, Axis("", names), Axis("mean squared distance", log=True))


def swaps(dataset: "xarray.Dataset") -> Panel:
    """The layer where most tokens would swap: each one's place before, and whose place it would take."""
    coupling = dataset.coupling.values
    own = np.arange(coupling.shape[1])
    layer = int((coupling != own).sum(axis=1).argmax())
    moving = [int(at) for at in np.flatnonzero(coupling[layer] != own)]
    cycles = cycles_of(coupling[layer], moving)[:MOST]
    words = [
        f"{token} {shown(str(word))}" for token, word in zip(dataset.token.values, dataset.word.values, strict=True)
    ]
    order = {token: -at for at, token in enumerate(sorted(token for _, token in cycles))}
    marks: list[Line | Word] = []
    for cycle, token in cycles:
        to = int(coupling[layer][token])
        tip = f"{words[token]} would take the place of {words[to]}"
        marks.append(Line(words[token], [0, 1], [order[token], order[to]], CLUSTERS[cycle % len(CLUSTERS)], tip=tip))
        marks += [Word(0, order[token], words[token], "left"), Word(1, order[token], words[token], "right")]
    place = places(dataset.step.values)[layer]
    said = f"{len(moving)} of {len(own)} tokens would swap in {place}" if moving else "no token would swap in any layer"
    about = (
        f"{said}: on the left the token, on the right the token whose new place it would take in the optimal coupling."
    )
    if not moving:
        marks = [Word(0.5, 0.0, "No token would swap: κ is 1 in every layer.", "middle")]
    elif len(cycles) < len(moving):
        about += f" The first {len(cycles)} are drawn."
    height = max(0.6, (len(cycles) * 17 + 60) / 236)
    return Panel(
        said[0].upper() + said[1:], about, tuple(marks), Axis(f"before and after {place}", bare=True, low=-1.2, high=2.2),
        Axis(bare=True), columns=2, height=height,
    )  # fmt: skip


def cycles_of(coupling: np.ndarray, moving: list[int]) -> list[tuple[int, int]]:
    """(cycle, token) of all that move, cycle by cycle, so that a chart that shows some shows whole ones first.

    >>> cycles_of(np.array([1, 0, 2, 4, 3]), [0, 1, 3, 4])
    [(0, 0), (0, 1), (1, 3), (1, 4)]
    """
    found: list[tuple[int, int]] = []
    left, cycle = set(moving), 0
    for start in moving:
        token = start
        while token in left:
            left.remove(token)
            found.append((cycle, token))
            token = int(coupling[token])
        cycle += bool(found) and found[-1][0] == cycle
    return found


def plot_transport(dataset: "xarray.Dataset") -> "Figure":
    """The picture with matplotlib, for papers."""
    return on_paper(picture_transport(dataset))


def interactive_transport(dataset: "xarray.Dataset") -> Any:
    """The picture with plotly, for notebooks."""
    return in_notebook(picture_transport(dataset))
