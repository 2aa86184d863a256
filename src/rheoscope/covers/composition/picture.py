"""Which heads work together: the graph of the strongest pairs of heads, and every two layers as maps."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.bars import bars
from rheoscope.picture.head_map import COLOURS, MIXED, kinds_of, said
from rheoscope.picture.picture import Axis, Cells, Line, Mark, Panel, Picture, Word, number

if TYPE_CHECKING:
    import xarray

Pair = tuple[str, int, int, float]
"""A kind of composition, the earlier head and the later one (as layer · heads + head), and how strong it is."""
CAPTION = (
    "An arc joins an earlier head with a later one that reads what it writes: to ask with it (Q), to look for it (K), "
    "or to carry it on (V). Only the strongest pairs of each kind are drawn. 0 is the level of random operators, and "
    "the arc's number is what lies above it. From the weights alone, so it says what could flow, not what does on a "
    "text."
)
KINDS = {
    "q": ("Q: asks with it", "first"),
    "k": ("K: looks for it", "second"),
    "v": ("V: carries it on", "third"),
}
LEAST_ROWS, NAMED = 8, 13


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """The graph, then for each kind its strongest pairs and a map of layers."""
    bars, maps = ([part(dataset, kind) for kind in KINDS] for part in (falling, between_layers))
    return Picture("Which heads work together", CAPTION, (graph(dataset, types), *bars, *maps))


def graph(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Panel:
    """Layers from left to right, heads from top to bottom; an arc a pair, the heads that take part by name."""
    names = [str(name) for name in dataset.head_from.values]
    layer, head = (np.array([int(name[1:].split(".H")[k]) for name in names]) for k in (0, 1))
    pairs, heads = strongest(dataset), int(head.max()) + 1
    kinds, height = kinds_of(types, (int(layer.max()) + 1, heads)), heads - 1 - head
    arcs = [arc(pair, layer, height, names) for pair in pairs]
    bold = [replace(arcs[at], name="", tip="") for at in range(0, len(arcs), len(arcs) // len(KINDS))]
    taking = sorted({at for _, a, b, _ in pairs for at in (a, b)})
    named = taking if layer.max() < NAMED else []  # further layers leave no room for names; the axes have them
    words = [Word(float(layer[at]), height[at] + 0.3, names[at], "middle") for at in named]
    about = f"The {len(pairs) // len(KINDS)} strongest pairs of each kind, the first bold; dots are heads."
    x = Axis("", tuple(f"L{at}" for at in range(layer.max() + 1)), low=-0.3, high=layer.max() + 0.3)
    y = Axis("", tuple(f"H{at}" for at in reversed(range(heads))), low=-0.6, high=heads - 0.4)
    marks: tuple[Mark, ...] = (*bold, *arcs, *spots(layer, height, kinds), *words, *key(kinds))
    return Panel("The graph of heads", about, marks, x, y, columns=3, height=max(LEAST_ROWS, heads) * 40 / 236)


def arc(pair: Pair, layer: np.ndarray, height: np.ndarray, names: list[str]) -> Line:
    """A bent line, so that heads in between stay free."""
    kind, a, b, score = pair
    t = np.linspace(0, 1, 17)
    bend = {"q": 0.5, "k": -0.5, "v": 0.25}[kind] * 4 * t * (1 - t)
    x, y = layer[a] + (layer[b] - layer[a]) * t, height[a] + (height[b] - height[a]) * t + bend
    name, colour = KINDS[kind]
    return Line(name, x, y, colour, tip=f"{names[a]} → {names[b]}, {name}: {number(score)}")


def spots(layer: np.ndarray, height: np.ndarray, kinds: np.ndarray | None) -> list[Line]:
    """A dot a head, in the colour of its type."""
    flat = np.full(len(layer), "") if kinds is None else kinds.ravel()
    groups = {name: np.flatnonzero(flat == name) for name in dict.fromkeys(flat.tolist())}
    return [
        Line(
            said(name),
            layer[at],
            height[at],
            COLOURS.get(name, MIXED if kinds is not None else "null"),
            "dots",
            tip=said(name) or "a head",
        )
        for name, at in groups.items()
    ]


def key(kinds: np.ndarray | None) -> list[Line]:
    """Lines without points: what the colours of arcs and dots say."""
    there = [] if kinds is None else [name for name in COLOURS if (kinds == name).any()]
    dots = [Line(said(name), [], [], COLOURS[name], "dots") for name in there]
    return [*(Line(name, [], [], colour) for name, colour in KINDS.values()), *dots]


def strongest(dataset: "xarray.Dataset") -> list[Pair]:
    """The strongest pairs of each kind."""
    return [
        (kind, int(a), int(b), float(score))
        for kind in KINDS
        for a, b, score in zip(
            *(dataset[f"top_{name}"].sel(kind=kind).values for name in ("from", "to", "score")), strict=True
        )
    ]


def between_layers(dataset: "xarray.Dataset", kind: str) -> Panel:
    """The strongest pair of every two layers."""
    names = [str(name) for name in dataset.head_from.values]
    layer = np.array([int(name[1:].split(".H")[0]) for name in names])
    count, table = int(layer.max()) + 1, dataset[kind].values
    values, tips = np.full((count, count), np.nan), [["" for _ in range(count)] for _ in range(count)]
    for a in range(count):
        for b in range(a + 1, count):
            rows, columns = np.flatnonzero(layer == a), np.flatnonzero(layer == b)
            part = table[np.ix_(rows, columns)]
            best = np.unravel_index(int(part.argmax()), part.shape)
            values[a, b] = part[best]
            tips[a][b] = f"{names[rows[best[0]]]} → {names[columns[best[1]]]}: {number(float(values[a, b]))}"
    reach = max(float(np.nanmax(np.abs(values))), 1e-30)
    sides = tuple(f"L{at}" for at in range(count))
    about = f"The strongest pair of heads of every two layers. {dataset[kind].attrs['definition']}."
    marks = (Cells(values, tips=tips, low=-reach, high=reach, name="composition"),)
    axes = Axis("reads", sides), Axis("writes", sides)
    return Panel(f"{KINDS[kind][0]}, by layers", about, marks, *axes, height=max(1.0, (count * 8 + 46) / 236))


def falling(dataset: "xarray.Dataset", kind: str) -> Panel:
    """A bar for each of the strongest pairs, the strongest on top."""
    names, (title, colour) = [str(name) for name in dataset.head_from.values], KINDS[kind]
    table = [(f"{names[a]} → {names[b]}", score) for one, a, b, score in strongest(dataset) if one == kind]
    about = f"{dataset.top_score.attrs['definition']}. {dataset[kind].attrs['definition']}."
    return bars(f"{title}, strongest pairs", about, table, "above random", (colour, "null"))
