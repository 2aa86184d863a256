"""Must tokens stay themselves, and where do they go? κ and the identity share beside their nulls, what moving costs, who would swap."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.picture import CLUSTERS, Axis, Line, Panel, Picture, Word
from rheoscope.picture.token_labels import places, shown

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "From cloud to cloud, the optimal coupling finds the cheapest way to get the same set of places, whoever goes there. κ is "
    "1 where every token keeping its identity is that way, and 0 where it is no better than pairing at random. Its null "
    "permutes the same displacements among the tokens: only a gap between the two lines says something about who moves where. "
    "Where they go: from their own words to those of the tokens that come next, as far as the model predicts them."
)
MOST = 22
"""Swapping tokens that one chart can name."""


def picture(dataset: "xarray.Dataset") -> Picture:
    """Over strides, layer by layer, and the layer with most swaps."""
    panels = (
        strided(dataset, "kappa", "κ over strides", "κ"),
        strided(dataset, "identity_share", "Tokens that stay in place", "identity share"),
        destination(dataset),
        stepwise(dataset),
        costs(dataset),
        swaps(dataset),
    )
    return Picture("Must tokens stay themselves?", CAPTION, panels)


def strided(dataset: "xarray.Dataset", name: str, title: str, series: str) -> Panel:
    """Mean over all pairs of layers that far apart, and the null."""
    strides = tuple(str(stride) for stride in dataset.stride.values)
    at = range(len(strides))
    lines = [Line(series, at, dataset[f"{name}_strided"].mean("step").values)]
    about = f"{dataset[name].attrs['definition']}; mean over all pairs of clouds so many layers apart."
    if f"{name}_null" in dataset:
        null = dataset[f"{name}_null_strided"].mean("step").values
        lines.insert(0, Line("null", at, null, "null", "dashed"))
        about += f" Null: {dataset[f'{name}_null'].attrs['definition']}."
    return Panel(title, about, tuple(lines), Axis("layers apart", strides), Axis(high=1.03))


def destination(dataset: "xarray.Dataset") -> Panel:
    """Cosines with the own and the next token's word, point by point, and how many partners have the own type next."""
    names = tuple(places(dataset.point.values))
    lines = [Line("own word", range(len(names)), dataset.toward_own.values, "second")]
    about = f"Own: {dataset.toward_own.attrs['definition']}."
    if "toward_next" in dataset:
        lines.append(Line("next word", range(len(names)), dataset.toward_next.values, "first"))
        about += f" Next: {dataset.toward_next.attrs['definition']}: {dataset.attrs['next']}."
        about += f" {float(dataset.next_type_share):.2f} is the {dataset.next_type_share.attrs['definition']}"
    if "toward_next_null" in dataset:
        lines.insert(0, Line("next, null", range(len(names)), dataset.toward_next_null.values, "null", "dashed"))
        about += f"; with partners permuted {float(dataset.next_type_share_null):.2f}"
    return Panel("Where tokens go", f"{about.removesuffix('.')}.", tuple(lines), Axis("", names), Axis("cosine"))


def stepwise(dataset: "xarray.Dataset") -> Panel:
    names = tuple(places(dataset.step.values))
    lines = [Line("κ", range(len(names)), dataset.kappa.values)]
    if "kappa_null" in dataset:
        lines.insert(0, Line("κ null", range(len(names)), dataset.kappa_null.values, "null", "dashed"))
    return Panel("κ of every layer", dataset.kappa.attrs["definition"], tuple(lines), Axis("", names), Axis(high=1.03))


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
    """The layer where most tokens would swap: on the left the token, on the right whose place it would take."""
    coupling, own = dataset.coupling.values, np.arange(dataset.sizes["token"])
    layer = int((coupling != own).sum(axis=1).argmax())
    moving = [int(at) for at in np.flatnonzero(coupling[layer] != own)]
    drawn = cycles_of(coupling[layer], moving)[:MOST]
    words = [
        f"{token} {shown(str(word))}" for token, word in zip(dataset.token.values, dataset.word.values, strict=True)
    ]
    place = places(dataset.step.values)[layer]
    title = f"{len(moving)} of {len(own)} tokens would swap in {place}" if moving else "No token would swap"
    about = "On the left a token, on the right the token whose new place it would take in the optimal coupling; a colour a cycle."
    about += f" {len(drawn)} of {len(moving)} are drawn." if len(drawn) < len(moving) else ""
    marks = slopes(coupling[layer], drawn, words) or (Word(0.5, 0, "κ is 1 in every layer", "middle"),)
    sides = Axis(f"before and after {place}", bare=True, low=-0.9, high=1.9), Axis(bare=True)
    return Panel(title, about, marks, *sides, columns=2, height=max(0.6, (len(marks) * 6 + 60) / 236))


def slopes(coupling: np.ndarray, drawn: list[tuple[int, int]], words: list[str]) -> tuple[Line | Word, ...]:
    """A line a token, from its place in the text to that of the token it would follow."""
    targets = [int(coupling[token]) for _, token in drawn]
    row = {token: -at for at, token in enumerate(sorted({*targets, *(token for _, token in drawn)}))}
    marks: list[Line | Word] = []
    for (cycle, token), to in zip(drawn, targets, strict=True):
        tip = f"{words[token]} would take the place of {words[to]}"
        marks.append(Line(words[token], [0, 1], [row[token], row[to]], CLUSTERS[cycle % len(CLUSTERS)], tip=tip))
        marks += [Word(0, row[token], words[token], "left"), Word(1, row[to], words[to], "right")]
    return tuple(marks)


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
