"""The atlas: cards of several models side by side, in the table, the plot and the files."""

import json
from pathlib import Path

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.catalogue import all_claims
from rheoscope.report.atlas import atlas_picture, atlas_table
from rheoscope.report.card_cache import find_card
from tests.commands.cases import run_rheoscope
from tests.report.test_card import planted_card


def test_every_row_equals_the_card_of_its_model() -> None:
    default, planted = find_card(rs.load().view), planted_card(2.0)
    assert default is not None
    atlas = rs.atlas([default, planted])
    assert dict(atlas.sizes) == {"model": 2, "claim": len(all_claims())}
    for card, name in ((default, "the default model"), (planted, "a planted model")):
        row = atlas.sel(model=name)
        for field in ("estimate", "low", "high", "threshold"):
            assert np.array_equal(row[field].values, card[field].values), field
        assert row.answer.values.tolist() == card.answer.values.tolist()


def test_a_model_without_a_claim_has_no_answer_there() -> None:
    card = planted_card(2.0)
    atlas = rs.atlas([card, card.isel(claim=slice(1, None))])
    assert atlas.answer.values[1, 0] == ""
    assert np.isnan(atlas.estimate.values[1, 0])
    assert str(atlas_table(atlas).rows[0][2].text) == "not measured"
    picture = atlas_picture(atlas)
    assert len(picture.panels) == len(all_claims())
    mark_lists = [[mark for mark in panel.marks if len(mark.x)] for panel in picture.panels]
    assert len(mark_lists[0]) == len(mark_lists[1]) - 3
    assert set(picture.panels[0].legend) == {"yes", "no", "reversed", "unclear", "random models", "smallest effect"}
    assert set(picture.panels[1].legend) == {"random models"}


def test_an_atlas_needs_a_card() -> None:
    with pytest.raises(rs.RheoscopeError, match="at least one card"):
        rs.atlas([])


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    outcome = run_rheoscope("atlas", "default", "--json", "a.json", "--html", "a.html", cwd=tmp_path, width=100)
    assert outcome.status == 0, outcome.err
    assert "deformation yes .15" in outcome.words
    assert json.loads((tmp_path / "a.json").read_text())["atlas"]["dims"]["claim"] == len(all_claims())
    assert "<svg" in (tmp_path / "a.html").read_text()
