"""Pictures of the flow: each draws every number it is given, and all three hands draw the same."""

import math
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import xarray as xr

import rheoscope as rs
from rheoscope.report.draw.inline import figures, svg
from rheoscope.report.draw.notebook import in_notebook
from rheoscope.report.draw.paper import on_paper
from rheoscope.report.picture import PALETTE, Axis, Cells, Line, Panel, Picture, Shape, Word, decades, ticks
from rheoscope.report.plot.clusters import ALONE, largest, ribbon, stacked, tracked
from rheoscope.report.plot.density_clusters import picture_density_clusters
from rheoscope.report.plot.readout import LEAST
from rheoscope.report.plot.trajectory import maker, speeds
from rheoscope.report.plot.transport import MOST, cycles_of, swaps
from tests.report.cases import FLOW, TEXT, Parts, by_three_hands, model, told


def picture(name: str) -> Picture:
    return getattr(import_module(f"rheoscope.report.plot.{name}"), f"picture_{name}")(told().found[name])


def line(panel: Panel, name: str) -> Line:
    return next(mark for mark in panel.marks if isinstance(mark, Line) and mark.name == name)


@pytest.mark.parametrize("name", FLOW)
def test_three_hands_draw_every_panel(name: str) -> None:
    panels, dataset = picture(name).panels, told().found[name]
    paper, notebook = rs.plot(dataset), rs.interactive(dataset)
    assert [axes.get_title("left") for axes in paper.axes] == [panel.title for panel in panels]
    assert len(notebook.data) == sum(len(panel.marks) for panel in panels)
    assert Parts(figures(picture(name))).count("svg") == len(panels)
    paper.canvas.draw()


def test_lines_on_paper_and_on_the_page_hold_the_numbers() -> None:
    panel = picture("kept").panels[0]
    rsa = told().found["kept"].rsa.sel(reference="embed").values
    drawn = next(one for one in rs.plot(told().found["kept"]).axes[0].lines if one.get_label() == "to the embedding")
    assert np.allclose(drawn.get_ydata(), rsa)
    tips = Parts(svg(panel)).texts["title"]
    assert len(tips) == len(rsa)
    assert f"to the embedding: {rsa[1]:.3g}" in tips[1]
    assert tips[1].startswith("L0\n")


def test_a_panel_has_a_mark_for_every_value_and_gaps_where_there_is_none() -> None:
    panel = Panel(
        "t", "about", (Line("a", range(5), [1, 2, math.nan, 4, 5]), Line("b", range(5), range(5), style="dots"))
    )
    parts = Parts(svg(panel))
    assert parts.count("polyline") == 2
    assert parts.count("circle") == 5
    assert parts.count("rect", "hit") == 5
    assert "a: none" in parts.texts["title"][2]
    assert "nan" not in svg(panel)


def test_up_is_more_and_right_is_later() -> None:
    points = next(
        attrs["points"]
        for tag, attrs in Parts(svg(Panel("", "", (Line("a", [0, 1], [1, 2]),)))).elements
        if tag == "polyline"
    )
    (x0, y0), (x1, y1) = (tuple(map(float, pair.split(","))) for pair in str(points).split())
    assert x1 > x0
    assert y1 < y0


def test_a_logarithmic_axis_leaves_out_what_has_no_logarithm() -> None:
    parts = Parts(svg(Panel("", "", (Line("a", range(3), [0.0, 10.0, 100.0]),), y=Axis(log=True))))
    points = next(attrs["points"] for tag, attrs in parts.elements if tag == "polyline")
    assert len(str(points).split()) == 2
    assert {"10", "100"} <= set(parts.texts["text"])


def test_cells_shade_by_value_and_mark_the_answer() -> None:
    cells = Cells(
        np.array([[0.0, 0.5], [-1.0, math.nan]]), [["a", "b"], ["<c>", "d"]], marked=frozenset({(0, 1)}), low=-1.0
    )
    parts = Parts(svg(Panel("", "", (cells,), Axis(names=("1", "2")), Axis(names=("x", "y")))))
    shades = [(attrs["fill"], attrs["fill-opacity"]) for tag, attrs in parts.elements if tag == "rect"]
    blue, orange = PALETTE["first"], PALETTE["second"]
    assert shades == [(blue, "0.00"), (blue, "0.50"), (orange, "1.00"), (blue, "0.00")]
    assert parts.count("rect", "marked") == 1
    assert "<c>" in parts.texts["text"]


def test_a_map_may_have_another_centre_than_0() -> None:
    cells = Cells(np.array([[0.0, 0.5, 1.0, math.nan]]), centre=0.5)
    assert cells.shades.tolist() == [[-1.0, 0.0, 1.0, 0.0]]


def test_keys_in_a_notebook_stand_once_a_panel() -> None:
    two = Line("a", [0, 1], [1, 2]), Line("b", [0, 1], [2, 1], "second"), Line("a", [0, 1], [3, 3])
    drawn = in_notebook(Picture("", "", (Panel("one", "", two), Panel("two", "", two), Panel("alone", "", two[:1]))))
    shown = [(trace.name, trace.legend) for trace in drawn.data if trace.showlegend]
    assert shown == [("a", "legend2"), ("b", "legend2"), ("a", "legend3"), ("b", "legend3")]
    assert drawn.layout.legend2.x < drawn.layout.legend3.x


def test_a_long_name_at_the_edge_stays_on_the_sheet() -> None:
    names = ("a very long name", "b", "c", "another very long name")
    drawn = svg(Panel("", "", (Line("", range(4), range(4)),), Axis("", names)))
    for element, attrs in Parts(drawn).elements:
        if element == "text":
            assert 0 < float(str(attrs["x"])) < 360


def test_words_of_others_are_escaped_everywhere() -> None:
    evil = '<script>"&'
    marks = Line(evil, [0, 1], [0, 1], tip=evil), Shape(evil, [0, 1, 1], [0, 0, 1], tip=evil), Word(0, 0, evil)
    drawn = Picture(evil, evil, (Panel(evil, evil, marks, Axis(evil, (evil, evil)), Axis(evil)),))
    plain = Panel(evil, evil, (Line(evil, [0, 1], [0, 1]), Line("b", [0, 1], [0, 1])), Axis(evil, (evil, evil)))
    assert "<script>" not in figures(Picture(evil, evil, (plain,)))
    assert "<script>" not in figures(drawn)
    assert Parts(figures(drawn)).count("script") == 0
    assert "<script>" not in in_notebook(drawn).to_json().replace("\\u003c", "<").replace("\\u003e", ">")
    dollars = Panel("", "", (Word(0, 0, "$x_$"),), Axis(names=("$a^$",)))
    on_paper(Picture("", "", (dollars,))).canvas.draw()


def test_palette_stands_off_white_and_off_a_dark_page() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for name, colour in PALETTE.items():
        assert 1.05 / (luminance(colour) + 0.05) >= 3, name
        assert (luminance(colour) + 0.05) / (luminance("#12161f") + 0.05) >= 3, name


def test_the_map_has_a_path_and_an_end_for_every_token() -> None:
    panel, dataset = picture("trajectory").panels[0], told().found["trajectory"]
    paths = [mark for mark in panel.marks if isinstance(mark, Line) and mark.style == "solid"]
    assert len(paths) == dataset.sizes["token"]
    assert np.allclose(paths[2].x, dataset.place[:, 2, 0])
    assert paths[2].tip.startswith("token 2 ·ke: path ")
    assert Parts(svg(panel)).count("circle") == len(paths)


def test_speed_is_told_by_maker() -> None:
    dataset = told().found["trajectory"]
    panel = speeds(dataset)
    expected = dataset.relative_speed.sel(step="L2.resid_mid").median()
    assert line(panel, "attention").y[2] == pytest.approx(float(expected))
    assert list(panel.key) == ["attention", "MLP"]
    post = ["L0.attn_sum", "L0.resid_mid", "L0.mlp_sum", "L0.resid_post"]
    assert [maker(step, post) for step in post] == ["attention", "norm", "MLP", "norm"]
    assert maker("L0.resid_cross", []) == "cross attention"


def coupled(coupling: list[list[int]]) -> xr.Dataset:
    steps, tokens = np.shape(coupling)
    words = [f"w{at}" for at in range(tokens)]
    coords = {"step": [f"L{k}.resid_post" for k in range(steps)], "token": range(tokens), "word": ("token", words)}
    return xr.Dataset({"coupling": (("step", "token"), np.array(coupling))}, coords)


def test_the_layer_with_most_swaps_is_drawn_cycle_by_cycle() -> None:
    panel = swaps(coupled([[1, 0, 2, 3, 4], [1, 2, 0, 4, 3], [0, 1, 2, 3, 4]]))
    assert panel.title == "5 of 5 tokens would swap in L1"
    lines = [mark for mark in panel.marks if isinstance(mark, Line)]
    assert [(mark.name, list(mark.y)) for mark in lines] == [
        ("0 w0", [0, -1]), ("1 w1", [-1, -2]), ("2 w2", [-2, 0]), ("3 w3", [-3, -4]), ("4 w4", [-4, -3]),
    ]  # fmt: skip
    assert len({mark.colour for mark in lines}) == 2
    assert cycles_of(np.array([1, 0, 3, 2]), [0, 1, 2, 3]) == [(0, 0), (0, 1), (1, 2), (1, 3)]


def test_no_swap_says_so_and_many_are_cut() -> None:
    still = swaps(coupled([[0, 1, 2]]))
    assert still.title == "No token would swap"
    assert svg(still)
    many = swaps(coupled([[*range(1, 60), 0]]))
    assert sum(isinstance(mark, Line) for mark in many.marks) == MOST
    assert f"{MOST} of 60 are drawn" in many.about


def test_a_cluster_keeps_its_name_while_most_of_its_tokens_stay() -> None:
    labels = np.array([[0, 0, 0, 3, 3, 5], [0, 0, 2, 2, 2, 5], [0, 1, 2, 2, 2, 2]])
    named = tracked(labels)
    assert named[0].tolist() == [0, 0, 0, 1, 1, ALONE]
    assert named[1].tolist() == [0, 0, 1, 1, 1, ALONE]
    assert named[2].tolist() == [ALONE, ALONE, 1, 1, 1, 1]
    assert largest(named, most=1)[1].tolist() == [ALONE, ALONE, 1, 1, 1, ALONE]
    split = tracked(np.array([[0, 0, 0, 0], [0, 0, 2, 2]]))
    assert len(set(split[1].tolist())) == 2


def test_bands_hold_every_token_at_every_step() -> None:
    panel, dataset = picture("clusters").panels[-1], told().found["clusters"]
    shapes = [mark for mark in panel.marks if isinstance(mark, Shape)]
    tokens = [int(mark.tip.split(" token")[0].split()[-1]) for mark in shapes]
    bands, blocks = (
        [count for mark, count in zip(shapes, tokens, strict=True) if (len(mark.x) == 4) is block]
        for block in (False, True)
    )
    points, n = dataset.sizes["point"], dataset.sizes["token"]
    assert sum(bands) == n * (points - 1)
    assert sum(blocks) == n * points
    for at in range(points - 1):
        between = [mark for mark in shapes if len(mark.x) > 4 and at < mark.x[0] < at + 1]
        for side, foot in ((0, -1), (len(between[0].x) // 2 - 1, len(between[0].x) // 2)):
            spans = sorted((mark.y[side], mark.y[foot]) for mark in between)
            assert all(low[1] <= high[0] + 1e-9 for low, high in pairwise(spans))
    assert stacked(np.array([ALONE, 0, 0])) == {ALONE: (0.0, 1.0), 0: (1.06, 3.06)}
    x, y = ribbon(0.0, 1.0, 2.0, 5.0, 3)
    assert (y[0], y[-1]) == (2, 5)
    assert (y[len(y) // 2 - 1], y[len(y) // 2]) == (5, 8)
    assert len(x) == len(y)


def test_readout_tells_tokens_by_their_words() -> None:
    lens = told().found["readout"]
    bare = picture("readout").panels[0].marks[0]
    assert isinstance(bare, Cells)
    assert bare.texts[0][0] == f"#{int(lens.top_tokens[0, 0])}"
    worded = rs.plot(lens, words=model().words).axes[0]
    assert len(worded.texts) == 7 * 5
    places = picture("readout").panels[-1].marks[0]
    assert isinstance(places, Cells)
    assert np.array_equal(places.values, lens.said_probability.values)
    assert places.texts[2][3] == f"#{int(lens.said[2, 3])}"
    assert {(6, at) for at in range(8)} <= set(places.marked)
    divergence = picture("readout").panels[3]
    assert divergence.y.log
    assert line(divergence, "KL").y[-1] == LEAST
    assert worded.texts[0].get_text() == model().words([int(lens.top_tokens[0, 0])])[0].replace(" ", "·")
    answers: Any = bare.marked
    assert (6, 0) in answers


def test_a_share_of_scores_beyond_the_scale_and_unused_parts() -> None:
    titles = [panel.title for panel in picture("scores").panels]
    assert "The form on the cloud" in titles
    used = {name for name in ("query_bias", "key_bias") if float(abs(told().found["scores"][name]).max()) > 0}
    assert ("Bias of queries" in titles) == ("query_bias" in used)


def test_ticks_are_round_and_inside() -> None:
    for low, high in ((0.0, 1.0), (-3.2, 17.9), (0.013, 0.0131), (1e6, 7e6)):
        found = ticks(low, high)
        assert 2 <= len(found) <= 8
        assert all(low - 1e-9 <= value <= high * (1 + 1e-9) for value in found)
    assert decades(3.0, 8.0) == [5.0]


@pytest.mark.parametrize("draw", [rs.plot, rs.interactive])
def test_what_has_no_picture_is_told(draw: Any) -> None:
    with pytest.raises(rs.RheoscopeError, match="got one of 'nothing'"):
        draw(xr.Dataset(attrs={"analysis": "nothing"}))
    with pytest.raises(rs.RheoscopeError, match="got Dataset; type rs"):
        draw(xr.Dataset())
    with pytest.raises(rs.RheoscopeError, match="got list"):
        draw([1])


def test_operators_have_a_picture_on_paper() -> None:
    assert rs.plot(rs.operators(model().view)).axes


def test_clusters_by_density_stand_beside_their_null() -> None:
    dataset = rs.density_clusters(rs.load().trace(TEXT), least=2)
    picture = picture_density_clusters(dataset)
    by_three_hands(picture, dataset)
    null, count = picture.panels[0].marks
    assert np.array_equal(count.y, dataset.cluster_count)
    assert np.array_equal(null.y, dataset.cluster_count_null)
