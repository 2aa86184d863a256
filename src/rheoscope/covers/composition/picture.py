"""The picture of composition: a graph of the strongest pairs of heads, bars, and maps over pairs of layers."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, plural
from rheoscope.picture.bars import bar_panel
from rheoscope.picture.head_map import MIXED_COLOUR, TYPE_COLOURS, type_label, types_of_heads
from rheoscope.picture.picture import Axis, Cells, Label, Line, Mark, Panel, Picture, format_value

if TYPE_CHECKING:
    import xarray

HeadPair = tuple[str, int, int, float]
"""A kind of composition, the earlier and the later head (as layer · heads + head), and the score of the pair."""
CAPTION = Message(
    "An arc joins an earlier head to a later head that reads its output through queries (Q), keys (K) or values (V). Only the "
    "strongest pairs of each kind are drawn. Scores are relative to random operators, whose level is 0. They come from the "
    "weights alone, so they show what could flow and not what does flow on a text."
)
KINDS = {
    "q": (Message("Q-composition"), "first"),
    "k": (Message("K-composition"), "second"),
    "v": (Message("V-composition"), "third"),
}
MIN_ROWS, MAX_NAMED_LAYERS = 8, 13


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """The graph, then the strongest pairs and a map over layers for each kind."""
    bar_panels, maps = ([make_panel(dataset, kind) for kind in KINDS] for make_panel in (strongest_bars, layer_map))
    return Picture(Message("Which heads work together"), CAPTION, (head_graph(dataset, types), *bar_panels, *maps))


def head_graph(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Panel:
    """Layers from left to right, heads from top to bottom, and one arc per pair. Heads of a pair are labelled."""
    names = [str(name) for name in dataset.head_from.values]
    layer, head = (np.array([int(name[1:].split(".H")[k]) for name in names]) for k in (0, 1))
    pairs, n_heads = strongest_pairs(dataset), int(head.max()) + 1
    kinds, heights = types_of_heads(types, (int(layer.max()) + 1, n_heads)), n_heads - 1 - head
    arcs = [pair_arc(pair, layer, heights, names) for pair in pairs]
    bold_arcs = [replace(arcs[index], name="", tip="") for index in range(0, len(arcs), len(arcs) // len(KINDS))]
    involved_heads = sorted({index for _, a, b, _ in pairs for index in (a, b)})
    has_room = layer.max() < MAX_NAMED_LAYERS
    labelled_heads = involved_heads if has_room else []
    labels = [Label(float(layer[index]), heights[index] + 0.3, names[index], "middle") for index in labelled_heads]
    description = plural(
        "The strongest pair of each kind. Dots are heads.",
        "The {n} strongest pairs of each kind. The strongest is bold. Dots are heads.",
        n=len(pairs) // len(KINDS),
    )
    x = Axis("", tuple(f"L{index}" for index in range(layer.max() + 1)), low=-0.3, high=layer.max() + 0.3)
    y = Axis("", tuple(f"H{index}" for index in reversed(range(n_heads))), low=-0.6, high=n_heads - 0.4)
    marks: tuple[Mark, ...] = (*bold_arcs, *arcs, *head_dots(layer, heights, kinds), *labels, *legend_lines(kinds))
    return Panel(
        Message("Graph of heads"),
        description,
        marks,
        x,
        y,
        columns=3,
        height=max(MIN_ROWS, n_heads) * 40 / 236,
        name="head_graph",
    )


def pair_arc(pair: HeadPair, layer: np.ndarray, heights: np.ndarray, names: list[str]) -> Line:
    """A curved line, so that it does not cover the heads in between."""
    kind, a, b, score = pair
    t = np.linspace(0, 1, 17)
    bend = {"q": 0.5, "k": -0.5, "v": 0.25}[kind] * 4 * t * (1 - t)
    x, y = layer[a] + (layer[b] - layer[a]) * t, heights[a] + (heights[b] - heights[a]) * t + bend
    name, colour = KINDS[kind]
    return Line(name, x, y, colour, tip=_pair_tip(names[a], names[b], name, score))


def _pair_tip(head_from: str, head_to: str, kind: str, score: float) -> Message:
    return Message(
        "{head_from} → {head_to}, {kind}: {score}",
        head_from=head_from,
        head_to=head_to,
        kind=kind,
        score=format_value(score),
    )


def head_dots(layer: np.ndarray, heights: np.ndarray, kinds: np.ndarray | None) -> list[Line]:
    """One dot per head, in the colour of its type."""
    flat_kinds = np.full(len(layer), "") if kinds is None else kinds.ravel()
    groups = {name: np.flatnonzero(flat_kinds == name) for name in dict.fromkeys(flat_kinds.tolist())}
    return [
        Line(
            type_label(name),
            layer[indices],
            heights[indices],
            TYPE_COLOURS.get(name, MIXED_COLOUR if kinds is not None else "null"),
            "dots",
            tip=type_label(name) or Message("head"),
        )
        for name, indices in groups.items()
    ]


def legend_lines(kinds: np.ndarray | None) -> list[Line]:
    """Lines without points, for the legend of arcs and dots."""
    present_types = [] if kinds is None else [name for name in TYPE_COLOURS if (kinds == name).any()]
    dots = [Line(type_label(name), [], [], TYPE_COLOURS[name], "dots") for name in present_types]
    return [*(Line(name, [], [], colour) for name, colour in KINDS.values()), *dots]


def strongest_pairs(dataset: "xarray.Dataset") -> list[HeadPair]:
    """The strongest pairs of each kind."""
    return [
        (kind, int(a), int(b), float(score))
        for kind in KINDS
        for a, b, score in zip(
            *(dataset[f"top_{name}"].sel(kind=kind).values for name in ("from", "to", "score")), strict=True
        )
    ]


def layer_map(dataset: "xarray.Dataset", kind: str) -> Panel:
    """The strongest pair of heads between every two layers."""
    names = [str(name) for name in dataset.head_from.values]
    layer = np.array([int(name[1:].split(".H")[0]) for name in names])
    n_layers, scores = int(layer.max()) + 1, dataset[kind].values
    values, tips = np.full((n_layers, n_layers), np.nan), [["" for _ in range(n_layers)] for _ in range(n_layers)]
    for a in range(n_layers):
        for b in range(a + 1, n_layers):
            rows, columns = np.flatnonzero(layer == a), np.flatnonzero(layer == b)
            block = scores[np.ix_(rows, columns)]
            best_index = np.unravel_index(int(block.argmax()), block.shape)
            values[a, b] = block[best_index]
            tips[a][b] = (
                f"{names[rows[best_index[0]]]} → {names[columns[best_index[1]]]}: {format_value(float(values[a, b]))}"
            )
    limit = max(float(np.nanmax(np.abs(values))), 1e-30)
    layer_names = tuple(f"L{index}" for index in range(n_layers))
    description = Message(
        "The strongest pair of heads between every two layers. Value: {definition}.",
        definition=dataset[kind].attrs["definition"],
    )
    marks = (Cells(values, tips=tips, low=-limit, high=limit, name=Message("composition")),)
    axes = Axis(Message("reading layer"), layer_names), Axis(Message("writing layer"), layer_names)
    title = Message("{kind} by layer", kind=KINDS[kind][0])
    return Panel(title, description, marks, *axes, height=max(1.0, (n_layers * 8 + 46) / 236))


def strongest_bars(dataset: "xarray.Dataset", kind: str) -> Panel:
    """One bar for each of the strongest pairs, the strongest on top."""
    names, (title, colour) = [str(name) for name in dataset.head_from.values], KINDS[kind]
    entries = [
        (f"{names[a]} → {names[b]}", score) for pair_kind, a, b, score in strongest_pairs(dataset) if pair_kind == kind
    ]
    description = Message(
        "The strongest pairs in descending order. Value: {definition}.", definition=dataset[kind].attrs["definition"]
    )
    panel_title = Message("{kind}, strongest pairs", kind=title)
    return bar_panel(panel_title, description, entries, Message("above random"), (colour, "null"))
