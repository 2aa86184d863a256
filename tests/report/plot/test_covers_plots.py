"""Pictures of the covers: each draws every number it is given, by all three hands, and types of heads stand on every map."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.report.draw.inline import figures
from rheoscope.report.picture import Cells, Line, Panel, Picture, Shape, Word
from rheoscope.report.plot.heads import COLOURS, head_map
from rheoscope.report.plot.why import MOST, REST, gathered
from tests.pretrained.cases import once
from tests.report.cases import TEXT, Parts, by_three_hands, model

NAMES = (
    "distortion",
    "stack",
    "composition",
    "head_types",
    "fixed_point",
    "why",
    "rollout",
    "torn",
    "by_head",
    "decay",
    "boundary",
)
TYPED = (
    "by_head",
    "distortion",
    "composition",
    "agreement",
    "energy",
    "scores",
    "operators",
    "reversed_attention",
    "patching",
)


@once
def found() -> dict[str, Any]:
    view, trace = model().view, model().trace(TEXT)
    return {
        "distortion": rs.distortion(view, trace, k=3, draws=2),
        "stack": rs.stack(view, trace, draws=2),
        "composition": rs.composition(view, top=4),
        "head_types": rs.head_types(model(), tokens=20),
        "fixed_point": rs.fixed_point(model(), trace, layers=[0, 2, 5], times=3, iterations=3),
        "why": rs.why(view, trace, 4, 1),
        "rollout": rs.rollout(model(), trace, probes=2),
        "torn": rs.torn(view, trace, 2, 1, top=4),
        "by_head": rs.surgery_by_head(model(), TEXT, [(2, 1), (4, 3)], M="symmetric"),
        "decay": rs.decay(model(), [TEXT] * 5, 3, M="symmetric"),
        "boundary": rs.boundary(
            model(), [f"{one} to the cabinet are" for one in ("The keys", "A dog")], [0, 4], iterations=3
        ),
        "agreement": rs.agreement(view, trace, draws=2),
        "energy": rs.energy(view, trace),
        "scores": rs.scores(trace),
        "operators": rs.operators(view),
        "reversed_attention": rs.reversed_attention(model(), trace, " on"),
        "patching": rs.attention_patching(model(), trace, " on", (-0.1, 0.0)),
    }


def picture(name: str, **more: Any) -> Picture:
    return getattr(import_module(f"rheoscope.report.plot.{name}"), f"picture_{name}")(found()[name], **more)


def lines(panel: Panel) -> dict[str, Line]:
    return {mark.name: mark for mark in panel.marks if isinstance(mark, Line)}


def cells(panel: Panel) -> Cells:
    return next(mark for mark in panel.marks if isinstance(mark, Cells))


def titled(name: str, title: str, **more: Any) -> Panel:
    return next(panel for panel in picture(name, **more).panels if panel.title == title)


@pytest.mark.parametrize("name", [*NAMES, "operators"])
def test_three_hands_draw_every_panel(name: str) -> None:
    by_three_hands(picture(name), found()[name])


@pytest.mark.parametrize("name", TYPED)
def test_types_of_heads_stand_on_every_map_with_one_key(name: str) -> None:
    types = found()["head_types"]
    there = [kind for kind in COLOURS if (types.type.values == kind).any()]
    assert there
    drawn, bare = picture(name, types=types), picture(name)
    for panel, before in zip(drawn.panels, bare.panels, strict=True):
        if before.cells and before.x.label == "head":
            dots = {mark.name: set(zip(mark.y, mark.x, strict=True)) for mark in panel.marks[len(before.marks) :]}
            assert list(dots) == [kind.replace("_", "-") for kind in there]
            for kind in there:
                assert dots[kind.replace("_", "-")] == set(map(tuple, np.argwhere(types.type.values == kind).tolist()))
    html = figures(drawn)
    for kind in there:
        assert Parts(html).texts["li"].count(kind.replace("_", "-")) == 1
    assert not bare.key
    assert "Dots are types" not in bare.caption
    assert rs.plot(found()[name], types=types).axes
    keyed = [trace.name for trace in rs.interactive(found()[name], types=types).data if trace.showlegend]
    assert all(keyed.count(kind.replace("_", "-")) == 1 for kind in there)


def test_the_tip_of_a_head_tells_its_type() -> None:
    types = found()["head_types"]
    panel = head_map("t", "about", np.zeros((6, 4)), types=types)
    kind = str(types.type.values[2, 1]).replace("_", "-")
    assert cells(panel).tips[2][1] == f"L2.H1: 0, {kind}"


@pytest.mark.parametrize("types", [[], {"type": 1}])
def test_types_of_another_model_are_refused(types: Any) -> None:
    with pytest.raises(
        rs.RheoscopeError, match=r"types are those of 5 layers of 3 heads, got .*; type types=rs.head_types"
    ):
        head_map("t", "about", np.zeros((5, 3)), types=found()["head_types"])
    with pytest.raises(rs.RheoscopeError, match=r"got (list|dict)"):
        head_map("t", "about", np.zeros((6, 4)), types=types)


def test_distortion_shows_medians_beside_random_projections() -> None:
    dataset = found()["distortion"]
    curves = lines(titled("distortion", "Distances kept (RSA)"))
    assert curves["key"].y == pytest.approx(dataset.rsa.sel(image="key").median("head").values)
    assert curves["random projections"].y == pytest.approx(dataset.rsa_null.sel(image="query").values)
    content = cells(titled("distortion", "Distances kept as content (RSA)"))
    assert np.array_equal(content.values, dataset.rsa.sel(image="content").values)
    other = dataset.rsa_null.copy(deep=True)
    other.loc[{"image": "content"}] += 0.1
    apart = dataset.assign(rsa_null=other.assign_attrs(dataset.rsa_null.attrs))
    drawn = import_module("rheoscope.report.plot.distortion").over_depth(apart, "rsa", "t")
    assert {"query, random", "key, random", "content, random"} <= set(lines(drawn))


def test_stack_shows_means_over_layers_and_which_head_is_added() -> None:
    dataset = found()["stack"]
    curves = lines(titled("stack", "Distances recovered (RSA)"))
    assert curves["best first"].y == pytest.approx(dataset.recovered.mean("layer").values)
    assert curves["random order"].y == pytest.approx(dataset.recovered_random.mean("layer").values)
    assert curves["random projections"].style == "dashed"
    tips = cells(titled("stack", "Every layer, best heads first")).tips
    assert f"adds head {int(dataset.order[3, 1])};" in tips[3][1]
    off = [dataset.overlap.values[2][a][b] for a in range(4) for b in range(4) if a != b]
    assert lines(titled("stack", "Do heads read the same?"))["two heads of the layer"].y[2] == pytest.approx(
        np.mean(off)
    )


def test_the_graph_joins_the_strongest_pairs() -> None:
    dataset = found()["composition"]
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
    words = {mark.text for mark in panel.marks if isinstance(mark, Word)}
    assert {names[int(best.top_from)], names[int(best.top_to)]} <= words
    dots = [mark for mark in panel.marks if isinstance(mark, Line) and mark.style == "dots" and mark.tip]
    assert sum(len(mark.x) for mark in dots) == 24


def test_maps_of_layers_hold_their_strongest_pair() -> None:
    dataset = found()["composition"]
    table = cells(titled("composition", "Q: asks with it, by layers"))
    slow = max(float(dataset.q.sel(head_from=f"L1.H{a}", head_to=f"L3.H{b}")) for a in range(4) for b in range(4))
    assert table.values[1, 3] == pytest.approx(slow)
    assert np.isnan(table.values[3, 1])
    bars = titled("composition", "V: carries it on, strongest pairs")
    scores = [max(mark.x) for mark in bars.marks if isinstance(mark, Shape)]
    assert scores[::-1] == pytest.approx(dataset.top_score.sel(kind="v").values)


def test_bars_count_the_heads_of_every_type() -> None:
    types = found()["head_types"]
    panel = picture("head_types").panels[0]
    shapes = [mark for mark in panel.marks if isinstance(mark, Shape)]
    for kind in (*COLOURS, "mixed"):
        high = sum(max(mark.y) - min(mark.y) for mark in shapes if mark.name == kind.replace("_", "-"))
        assert high == (types.type.values == kind).sum()
    assert set(panel.key) == {str(kind).replace("_", "-") for kind in np.unique(types.type.values)}
    own = picture("head_types").panels[5]
    dots = [mark for mark in own.marks if isinstance(mark, Line)]
    assert sum(len(mark.x) for mark in dots) == (types.type.values == "local").sum()


def test_fixed_points_of_the_chosen_layers() -> None:
    dataset = found()["fixed_point"]
    curves = lines(titled("fixed_point", "Jacobian"))
    assert curves["radius"].y == pytest.approx(dataset.jacobian_radius.values)
    assert titled("fixed_point", "Jacobian").x.names == ("L0", "L2", "L5")
    table = cells(titled("fixed_point", "Residual of every token"))
    assert table.values == pytest.approx(np.log10(dataset.residual_token.values))
    assert table.tips[1][2].startswith(f"L2, token 2 {dataset.word.values[2].replace(' ', '·')}: ")


def test_all_squares_of_why_add_up_to_the_score() -> None:
    dataset = found()["why"]
    values, queries, keys = gathered(dataset)
    assert values.shape == (len(queries), len(keys)) == (MOST + 1, MOST + 1)
    assert queries[-1] == keys[-1] == REST
    assert values.sum() + float(dataset.position_bias) == pytest.approx(float(dataset.score), abs=1e-4)
    small = rs.why(model().view, model().trace(TEXT), 0, 1, 5, 2)
    assert REST not in gathered(small)[1]
    strongest = titled("why", "The strongest pairs")
    top = np.unravel_index(np.abs(dataset.contribution.values).argmax(), dataset.contribution.shape)
    assert strongest.y.names[-1] == f"{dataset['from'].values[top[0]]} × {dataset.to.values[top[1]]}"
    title = import_module("rheoscope.report.plot.why").picture_why(small).title
    assert title == f"Why L0.H1 looks where it does: token {small.attrs['pairs']}"


def test_rollout_and_derivative_stand_token_by_token() -> None:
    dataset = found()["rollout"]
    shares, against = picture("rollout").panels
    assert lines(shares)["derivative"].y == pytest.approx(dataset.jacobian.values)
    assert len(against.marks) == int(((dataset.rollout > 0) & (dataset.jacobian > 0)).sum()) - 1  # all but the query
    assert f"{float(dataset.correlation_null):.3g}" in picture("rollout").caption


def test_torn_pairs_go_from_their_place_in_e_to_that_in_the_image() -> None:
    dataset = found()["torn"]
    torn, glued = picture("torn").panels
    row = dataset.sel(kind="torn").isel(pair=0)
    ways = [mark for mark in torn.marks if isinstance(mark, Line) and mark.style == "solid"]
    assert list(ways[-1].x) == [float(row.before), float(row.after)]  # the most changed on top
    assert torn.y.names[-1].startswith(str(row.first_token.item()).replace(" ", "·"))
    assert len(glued.y.names) == 4


def test_costs_of_single_heads_are_framed_where_their_interval_leaves_0_out() -> None:
    dataset = found()["by_head"]
    table = cells(titled("by_head", "Cost of the edit, nats"))
    assert np.array_equal(table.values, dataset.cost.sel(change="edit").values, equal_nan=True)
    low, high = (dataset[f"cost_{end}"].sel(change="edit").values for end in ("low", "high"))
    sure = {(int(a), int(b)) for a, b in np.argwhere((low > 0) | (high < 0))}
    assert table.marked == sure
    over = lines(titled("by_head", "Over depth"))
    assert np.allclose(over["cloud"].y, dataset.cost.sel(change="cloud").sum("head"))


def test_decay_draws_every_change_and_the_interval_of_the_edit() -> None:
    dataset, left = found()["decay"], lines(titled("decay", "Deviation that remains"))
    assert set(left) == {"edit", "isotropic", "exchanged", "edit, low", "edit, high"}
    assert np.allclose(left["exchanged"].y, dataset.remaining.sel(change="exchanged"))
    assert titled("decay", "Same direction").x.names[:3] == ("L3a", "L3", "L4a")


def test_boundaries_have_a_line_a_text_beside_two_different_tokens() -> None:
    dataset, there = found()["boundary"], lines(titled("boundary", "Settled elsewhere, radians"))
    assert set(there) == {"A dog", "two different tokens"}
    assert np.allclose(there["A dog"].y, dataset.settled.values[1])
    assert set(lines(titled("boundary", "Radius of the Jacobian"))) == {"The keys", "A dog"}
