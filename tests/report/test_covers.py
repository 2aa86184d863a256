"""The covers for people: a row a layer, sentences with their nulls, pairs by name, and a page."""

import json
from pathlib import Path

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.report.answers import answers, types_of
from rheoscope.report.covers import (
    LISTED,
    LISTS,
    asked,
    changed,
    head_rows,
    layer_table,
    list_lines,
    lists,
    more,
    show,
    verdict,
)
from rheoscope.report.draw.inline import figures
from rheoscope.report.flow_page import flow_page
from rheoscope.report.plot.agreement import MAPS, picture_agreement
from tests.report.cases import Parts, model

PAGE = {*asked(2, lambda done, total: None), *more()}
TEXT = "The keys to the cabinet are on the table in the hall, and the old cabinet is in the old hall."


def test_the_command_tells_a_row_a_layer_and_writes_what_was_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    show(model(), rs.load(untrained=True), TEXT, 4, True, tmp_path / "c.json", tmp_path / "c.html")
    said = capsys.readouterr().out
    for layer in range(6):
        assert f"\nL{layer} " in said
    for word in (
        "similar",
        "opposite",
        "24 heads",
        "torn apart (near in E",
        "glued together (far in E",
        "given distance and key length",
        "null sd",
        "untrained",
        "at initial weights",
        "candidates were tested",
    ):
        assert word in said.replace("\n", " ")
    told = json.loads((tmp_path / "c.json").read_text())
    assert set(told) == {*PAGE, "findings"}
    assert "agreement_untrained" in json.dumps(told["agreement"])
    page = Parts((tmp_path / "c.html").read_text())
    for title in (
        "Does attention read similarity?",
        "What kind of heads they are",
        "What projections do to the geometry",
        "What heads see together, as queries",
        "Which heads work together",
        "Would a layer settle?",
        "Findings",
        "What it settles",
        "Heads and the tokens that they see otherwise",
    ):
        assert title in page.texts["h2"]
    assert "Left out" not in page.texts["h2"]
    assert page.count("svg") > 40


def test_what_no_page_asks_for_is_not_computed(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rheoscope.report.covers.more", lambda: pytest.fail("asked for"))
    show(model(), None, TEXT, 2, False, None, None)
    said = capsys.readouterr().out
    assert "Does attention read similarity" in said
    assert "untrained" not in said
    assert "initial weights" not in said


def test_a_text_that_is_too_short_is_one_line() -> None:
    with pytest.raises(rs.RheoscopeError, match="agreement needs a query with at least 8 other keys"):
        show(model(), None, "The keys", 2, False, None, None)


def test_sentences_count_heads_on_both_sides_of_their_null() -> None:
    found = rs.agreement(model().view, model().trace(TEXT), draws=4)
    q, z = np.ones((6, 4)), np.zeros((6, 4))
    q[0, :3], z[0, 0], z[0, 1], z[0, 2] = 0.01, 5, 6, -4
    planted = found.assign(q_value=found.q_value.copy(data=q), z=found.z.copy(data=z))
    first = verdict(planted)[0]
    assert first.startswith("2 of 24 heads read similarity")
    assert "1 read its opposite" in first
    assert "21 cannot be told from random" in first
    framed = picture_agreement(planted).panels[0].marks[0].marked
    assert framed == {(0, 0), (0, 1), (0, 2)}
    maps = rs.plot(planted).axes
    assert [len(axes.patches) for axes in maps[: len(MAPS) - 1]] == [3, 0, 0, 0, 0]
    assert len(rs.interactive(planted).layout.shapes) == 3
    bare = planted.drop_vars(["z", "q_value", "null_mean", "null_sd"])
    assert len(picture_agreement(bare).panels) == len(MAPS) - 1
    assert Parts(figures(picture_agreement(planted))).count("svg") == len(MAPS)


def test_lists_are_sorted_by_how_clear_their_heads_are() -> None:
    trace = model().trace(TEXT)
    found = rs.agreement(model().view, trace, draws=2)
    q, z, own = np.ones((6, 4)), np.full((6, 4), 0.5), np.zeros((6, 4))
    for at, (sign, size) in {(3, 2): (-1, 0.4), (0, 1): (-1, 0.7), (5, 3): (1, 0.2), (1, 0): (1, 0.9)}.items():
        q[at], z[at], own[at] = 0.01, sign * 5, sign * size
    z[2, 2], z[4, 4 - 1] = 0.1, float("nan")
    planted = found.assign({name: (("layer", "head"), x) for name, x in (("q_value", q), ("z", z), ("agreement", own))})
    told = lists(planted)
    assert told["similar"] == [(1, 0), (5, 3)]
    assert told["opposite"] == [(0, 1), (3, 2)]
    assert told["random"][0] == (2, 2)
    assert (4, 3) not in told["random"]
    assert len(told["random"]) == 19
    lines = list_lines(model(), trace, planted)
    assert lines[0].startswith("2 read similarity: L1.H0 .90, L5.H3 .20. L1.H0 has torn apart")
    assert lines[1].startswith("2 read its opposite: L0.H1 -.70, L3.H2 -.40. L0.H1 has torn apart")
    assert f"and {19 - LISTED} more" in lines[2]
    header, rows = head_rows(model(), trace, planted)
    assert [row[0] for row in rows[:5]] == ["L1.H0", "L5.H3", "L0.H1", "L3.H2", "L2.H2"]
    assert len(rows) == 4 + LISTED
    assert {len(row) for row in rows} == {len(header)}
    assert {row[-3] for row in rows} == set(LISTS.values())


def test_pairs_are_told_by_name_and_place() -> None:
    trace = model().trace(TEXT)
    pairs, wanted = changed(model(), trace, 3, 2, top=2), rs.torn(model().view, trace, 3, 2, top=2)
    for kind in ("torn", "glued"):
        row = wanted.sel(kind=kind)
        for at in range(2):
            assert f"({int(row['first'][at])})" in pairs[kind].split("; ")[at]
            assert f"({int(row['second'][at])})" in pairs[kind].split("; ")[at]


def test_a_model_that_cannot_read_the_probe_has_no_types_and_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: object) -> None:
        raise rs.RheoscopeError("the probe has 2 tokens or more")

    monkeypatch.setattr("rheoscope.report.answers.head_types", refuse)
    assert types_of(model()) is None
    told = answers(model(), model().trace(TEXT))
    assert "the probe has 2 tokens or more" in told.left_out["head_types"]
    assert "<circle class=on" not in flow_page(model(), told).html()
    assert layer_table(told.found["agreement"], None).row_count == 6
