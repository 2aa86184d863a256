"""Tests of the picture of `composition`."""

import numpy as np
import pytest

from rheoscope.picture.head_map import TYPE_COLOURS
from rheoscope.picture.picture import Label, Line, Shape
from tests.pictures.cases import cells, example_head_types, example_picture, example_result, panel_with_title


def test_the_graph_joins_the_strongest_pairs() -> None:
    dataset = example_result("composition")
    panel = panel_with_title("composition", "Graph of heads")
    arcs = [mark for mark in panel.marks if isinstance(mark, Line) and "→" in mark.tip]
    assert len(arcs) == 3 * 4
    best = dataset.sel(kind="k").isel(place=0)
    names = dataset.head_from.values
    first = next(arc for arc in arcs if arc.name.startswith("K"))
    tip = f"{names[int(best.top_from)]} → {names[int(best.top_to)]}, K-composition: "
    assert first.tip.startswith(tip)
    layer, head = divmod(int(best.top_to), 4)
    assert (first.x[-1], first.y[-1]) == (layer, 3 - head)
    assert panel.y.names[3 - head] == f"H{head}"
    bold = [mark for mark in panel.marks if isinstance(mark, Line) and not mark.name and not mark.tip]
    assert [list(mark.x) for mark in bold] == [list(arcs[index].x) for index in (0, 4, 8)]
    labels = {mark.text for mark in panel.marks if isinstance(mark, Label)}
    assert {names[int(best.top_from)], names[int(best.top_to)]} <= labels
    dots = [mark for mark in panel.marks if isinstance(mark, Line) and mark.style == "dots" and mark.tip]
    assert sum(len(mark.x) for mark in dots) == 24


def test_the_map_of_layers_has_the_strongest_pair_of_heads() -> None:
    dataset = example_result("composition")
    table = cells(panel_with_title("composition", "Q-composition by layer"))
    expected = max(float(dataset.q.sel(head_from=f"L1.H{a}", head_to=f"L3.H{b}")) for a in range(4) for b in range(4))
    assert table.values[1, 3] == pytest.approx(expected)
    assert np.isnan(table.values[3, 1])
    bars = panel_with_title("composition", "V-composition, strongest pairs")
    scores = [max(mark.x) for mark in bars.marks if isinstance(mark, Shape)]
    assert scores[::-1] == pytest.approx(dataset.top_score.sel(kind="v").values)


def test_types_colour_the_heads_of_the_graph_and_appear_in_its_legend() -> None:
    graph, plain_graph = (
        example_picture("composition", **options).panels[0] for options in ({"types": example_head_types()}, {})
    )
    assert set(graph.legend) - set(plain_graph.legend) == {kind.replace("_", "-") for kind in TYPE_COLOURS}
    dot = next(mark for mark in graph.marks if isinstance(mark, Line) and mark.tip == "induction")
    assert (list(dot.x), list(dot.y)) == ([0], [2])  # L0.H1, counted from the top
    assert dot.colour == TYPE_COLOURS["induction"]
