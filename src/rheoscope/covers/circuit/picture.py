"""The picture of a circuit: its graph from the embedding to the logits, and what each edge contributes."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.covers.circuit.words import faithfulness_sentences
from rheoscope.covers.composition.picture import head_dots
from rheoscope.messages.message import Message, join
from rheoscope.picture.bars import bar_panel
from rheoscope.picture.head_map import types_of_heads
from rheoscope.picture.picture import Axis, Label, Line, Mark, Panel, Picture, format_value

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "An edge leads from the embedding or a head to what a later head reads, or to the logits. Q and K edges act through M: they change "
    "where the head attends. V edges act through F: they change what it moves. Only the embedding differs between the texts, so every "
    "path starts there. The bars show what the circuit loses without each edge."
)
KINDS = {
    "q": (Message("into queries (M)"), "first"),
    "k": (Message("into keys (M)"), "second"),
    "v": (Message("into values (F)"), "third"),
    "logits": (Message("to the logits"), "fourth"),
}
BEND = {"q": 0.5, "k": -0.5, "v": 0.25, "logits": -0.25}
MIN_ROWS = 6
"""Rows of heads below which the graph does not shrink."""
STRONG_SHARE = 0.2
"""Edges whose removal costs at least this share of the largest loss have strong lines."""


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """The graph, and a bar for every edge."""
    title = Message(
        "A circuit of {n} edges, faithfulness {faithfulness}",
        n=dataset.sizes["edge"],
        faithfulness=format_value(float(dataset.faithfulness)),
    )
    caption = join(" ", [*faithfulness_sentences(dataset), CAPTION])
    return Picture(title, caption, (circuit_graph(dataset, types), edge_bars(dataset)))


def circuit_graph(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Panel:
    """Layers from left to right between the embedding and the logits, heads from top to bottom, one arc per edge."""
    n_layers, n_heads = dataset.sizes["layer"], dataset.sizes["head"]
    layer, head = np.divmod(np.arange(n_layers * n_heads), n_heads)
    arcs = [edge_arc(dataset, index) for index in range(dataset.sizes["edge"])]
    names = dict.fromkeys([*map(str, dataset.edge_from.values), *map(str, dataset.edge_to.values)])
    labels = [Label(x, y + 0.3, name, "middle") for name in names for x, y in [place(dataset, name)]]
    ends = Line("", [-1, n_layers], [(n_heads - 1) / 2] * 2, "null", "dots")
    heads = head_dots(layer, n_heads - 1 - head, types_of_heads(types, (n_layers, n_heads)))
    legend = [Line(name, [], [], colour) for name, colour in KINDS.values()]
    marks: tuple[Mark, ...] = (*arcs, ends, *heads, *labels, *legend)
    x_names = (Message("embedding"), *(f"L{index}" for index in range(n_layers)), Message("logits"))
    shifted = tuple(_shift(mark) for mark in marks)
    x = Axis("", x_names, low=-0.4, high=n_layers + 1.4)
    y = Axis("", tuple(f"H{index}" for index in reversed(range(n_heads))), low=-0.6, high=n_heads - 0.4)
    description = Message("Strong arcs are the edges whose removal costs most. Dots are heads.")
    height = max(MIN_ROWS, n_heads) * 40 / 236
    return Panel(Message("Graph of the circuit"), description, shifted, x, y, 3, height, name="circuit_graph")


def _shift(mark: Mark) -> Mark:
    """A mark one step to the right, because names of an axis count from 0 and the embedding is layer −1."""
    if isinstance(mark, Label):
        return replace(mark, x=mark.x + 1)
    assert isinstance(mark, Line)
    return replace(mark, x=np.asarray(mark.x, dtype=float) + 1)


def place(dataset: "xarray.Dataset", name: str) -> tuple[float, float]:
    """Where a node is drawn: the embedding and the logits in the middle of both sides, heads by layer and number."""
    n_layers, n_heads = dataset.sizes["layer"], dataset.sizes["head"]
    if ".H" not in name:
        return (-1.0 if name == "embed" else float(n_layers)), (n_heads - 1) / 2
    layer, head = map(int, name.removeprefix("L").split(".H"))
    return float(layer), float(n_heads - 1 - head)


def edge_arc(dataset: "xarray.Dataset", index: int) -> Line:
    """A curved line. It is strong if the removal of the edge costs much."""
    edge = dataset.isel(edge=index)
    role = str(edge.role.values)
    (x0, y0), (x1, y1) = place(dataset, str(edge.edge_from.values)), place(dataset, str(edge.edge_to.values))
    t = np.linspace(0, 1, 17)
    bend = BEND[role] * 4 * t * (1 - t)
    name, colour = KINDS[role]
    tip = Message(
        "{edge}: the circuit loses {removal} without it, the edge alone restores {effect}",
        edge=str(edge.edge.values),
        removal=format_value(float(edge.removal)),
        effect=format_value(float(edge.effect.sel(direction="restore"))),
    )
    is_strong = abs(float(edge.removal)) >= STRONG_SHARE * float(abs(dataset.removal).max())
    style = "solid" if is_strong else "hair"
    return Line(name, x0 + (x1 - x0) * t, y0 + (y1 - y0) * t + bend, colour, style, tip=tip)


def edge_bars(dataset: "xarray.Dataset") -> Panel:
    """What the circuit loses without each edge, the largest loss on top."""
    names, losses = map(str, dataset.edge.values), map(float, dataset.removal.values)
    description = Message("Value: {definition}.", definition=dataset.removal.attrs["definition"])
    label = Message("loss of faithfulness")
    return replace(
        bar_panel(Message("Every edge"), description, list(zip(names, losses, strict=True)), label), columns=2
    )
