"""The picture of which heads work together."""

import numpy as np
import pytest

from rheoscope.picture.head_map import TYPE_COLOURS
from rheoscope.picture.picture import Label, Line, Shape
from tests.pictures.cases import cells, drawn, found, planted, titled


def test_the_graph_joins_the_strongest_pairs() -> None:
    dataset = found("composition")
    panel = titled("composition", "The graph of heads")
    arcs = [mark for mark in panel.marks if isinstance(mark, Line) and "→" in mark.tip]
    assert len(arcs) == 3 * 4
    best = dataset.sel(kind="k").isel(place=0)
    names = dataset.head_from.values
    first = next(arc for arc in arcs if arc.name.startswith("K"))
    said = f"{names[int(best.top_from)]} → {names[int(best.top_to)]}, K: looks for it: "
    assert first.tip.startswith(said)
    layer, head = divmod(int(best.top_to), 4)
    assert (first.x[-1], first.y[-1]) == (layer, 3 - head)
    assert panel.y.names[3 - head] == f"H{head}"
    bold = [mark for mark in panel.marks if isinstance(mark, Line) and not mark.name and not mark.tip]
    assert [list(mark.x) for mark in bold] == [list(arcs[at].x) for at in (0, 4, 8)]
    words = {mark.text for mark in panel.marks if isinstance(mark, Label)}
    assert {names[int(best.top_from)], names[int(best.top_to)]} <= words
    dots = [mark for mark in panel.marks if isinstance(mark, Line) and mark.style == "dots" and mark.tip]
    assert sum(len(mark.x) for mark in dots) == 24


def test_maps_of_layers_hold_their_strongest_pair() -> None:
    dataset = found("composition")
    table = cells(titled("composition", "Q: asks with it, by layers"))
    slow = max(float(dataset.q.sel(head_from=f"L1.H{a}", head_to=f"L3.H{b}")) for a in range(4) for b in range(4))
    assert table.values[1, 3] == pytest.approx(slow)
    assert np.isnan(table.values[3, 1])
    bars = titled("composition", "V: carries it on, strongest pairs")
    scores = [max(mark.x) for mark in bars.marks if isinstance(mark, Shape)]
    assert scores[::-1] == pytest.approx(dataset.top_score.sel(kind="v").values)


def test_types_colour_the_heads_of_the_graph_and_stand_in_its_key() -> None:
    graph, bare = (drawn("composition", **more).panels[0] for more in ({"types": planted()}, {}))
    assert set(graph.legend) - set(bare.legend) == {kind.replace("_", "-") for kind in TYPE_COLOURS}
    spot = next(mark for mark in graph.marks if isinstance(mark, Line) and mark.tip == "induction")
    assert (list(spot.x), list(spot.y), spot.colour) == (
        [0],
        [2],
        TYPE_COLOURS["induction"],
    )  # L0.H1, counted from the top
