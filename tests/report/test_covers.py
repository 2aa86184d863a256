"""The covers for people: a row a layer, sentences with their nulls, pairs by name, and a page."""

import json
from pathlib import Path

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.report.covers import pairs, sentences, show
from rheoscope.report.draw.inline import figures
from rheoscope.report.plot.agreement import MAPS, picture_agreement
from tests.report.cases import Parts, model

TEXT = "The keys to the cabinet are on the table in the hall, and the old cabinet is in the old hall."


def test_the_command_tells_a_row_a_layer_and_writes_what_was_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    show(model(), TEXT, 4, True, tmp_path / "c.json", tmp_path / "c.html")
    said = capsys.readouterr().out
    for layer in range(6):
        assert f"\nL{layer} " in said
    for word in (
        "similar",
        "opposite",
        "24 heads",
        "torn (near in E",
        "glued (far in E",
        "given distance and key length",
    ):
        assert word in said.replace("\n", " ")
    told = json.loads((tmp_path / "c.json").read_text())
    assert set(told) == {"agreement", "head_types", "distortion"}
    page = Parts((tmp_path / "c.html").read_text())
    assert page.count("svg") == len(MAPS) + 1
    assert "Does attention read similarity?" in page.texts["h2"]


def test_sentences_count_heads_on_both_sides_of_their_null() -> None:
    trace = model().trace(TEXT)
    found, kept = rs.agreement(model().view, trace, draws=4), rs.distortion(model().view, trace, k=3, draws=2)
    q, z = np.ones((6, 4)), np.zeros((6, 4))
    q[0, :3], z[0, 0], z[0, 1], z[0, 2] = 0.01, 5, 6, -4
    planted = found.assign(q_value=(("layer", "head"), q), z=(("layer", "head"), z))
    first = sentences(planted, kept)[0]
    assert first.startswith("2 of 24 heads read similarity")
    assert "1 read its opposite" in first
    assert "21 cannot be told from random" in first
    framed = picture_agreement(planted).panels[1].marks[0].marked
    assert framed == {(0, 0), (0, 1), (0, 2)}
    maps = rs.plot(planted).axes
    assert [len(axes.patches) for axes in maps[: len(MAPS)]] == [0, 3, 0, 0]
    assert Parts(figures(picture_agreement(planted))).count("svg") == len(MAPS) + 1


def test_pairs_are_those_of_the_head_furthest_from_similarity() -> None:
    trace = model().trace(TEXT)
    found = rs.agreement(model().view, trace, draws=2)
    lowest = found.agreement.copy(deep=True)
    lowest[3, 2] = -1
    lines = pairs(model(), trace, found.assign(agreement=lowest))
    assert all(line.startswith("L3.H2 has ") for line in lines)
    row = rs.torn(model().view, trace, 3, 2, top=3).sel(kind="torn")
    assert f"({int(row['first'][0])})" in lines[0]
