"""The commands surgery and reverse: what is typed, what is said, and only what the intervals allow."""

import json
from pathlib import Path

import pytest

import rheoscope as rs
from rheoscope.report import reverse
from rheoscope.report.surgery import heads_of, sentences, show
from tests.report.cases import Parts

TEXT = "The keys to the cabinet are on the table, and the man who has them went out to the garden to find his dog. "


@pytest.mark.parametrize("typed", ["a", "5.", "5.1,", "5-1", "5.1.2", ""])
def test_heads_that_cannot_be_read(typed: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=r"heads are typed as layer.head, got .*; type --heads 5.1,3.2"):
        heads_of(typed)


def test_a_difference_is_told_only_where_its_interval_leaves_out_0() -> None:
    found = rs.surgery(rs.load(), rs.pieces(rs.load(), TEXT * 8, 32), M="symmetric")
    said = sentences(found)
    assert f"{float(found.cost.sel(change='edit')):+.4f}" in said[0]
    row = found.sel(change="size")
    told = "does not tell from 0" in said[1]
    assert told == (float(row.excess_low) <= 0 <= float(row.excess_high))
    unsure = found.assign(excess_low=found.excess_low - 9, excess_high=found.excess_high + 9)
    assert "does not tell from 0" in sentences(unsure)[1]
    sure = found.assign(excess_low=abs(found.excess_low) + 1, excess_high=abs(found.excess_high) + 2)
    assert "does not tell from 0" not in sentences(sure)[1]
    short = rs.surgery(rs.load(), TEXT, M="symmetric")
    assert "type a longer one" in sentences(short)[1]


def test_surgery_prints_every_change_and_writes_every_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show(rs.load(), TEXT, "2.1,3.2", "symmetric", "rank 8", 1, tmp_path / "s.json", tmp_path / "s.html")
    out = capsys.readouterr().out
    for line in (
        "the replacement",
        "a random change of the same size",
        "a random change as large on this text",
        "heads silenced: their mean",
        "L2.H1 L3.H2",
    ):
        assert line in out
    told = json.loads((tmp_path / "s.json").read_text())["surgery"]
    assert told["attrs"]["M"] == "symmetric"
    assert told["attrs"]["F"] == "rank 8"
    assert told["data_vars"]["cost_low"]["data"][0] is None
    page = Parts((tmp_path / "s.html").read_text())
    assert page.count("svg") == 2
    assert page.texts["h1"][0].endswith("in heads L2.H1 L3.H2")
    assert f"{told['data_vars']['cost']['data'][0]:+.4f}" in page.texts["span"]


def test_reverse_names_the_heads_and_tokens_that_are_pulled_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = rs.load()
    trace = model.trace("The keys to the cabinet are")
    found = rs.reversed_attention(model, trace, " on")
    rows = reverse.strongest(model, trace, found, 3)
    first = rows[0]
    assert first.norm == pytest.approx(float(found.norm.max()))
    R = rs.reversed_map(model, trace, first.layer, first.head, " on")
    assert first.more[0] == (int(R.sum(0).argmin()), pytest.approx(float(R.sum(0).min())))
    assert first.less[0] == (int(R.sum(0).argmax()), pytest.approx(float(R.sum(0).max())))
    reverse.show(model, "The keys to the cabinet are", " on", -1, 4, tmp_path / "r.json", tmp_path / "r.html")
    out = capsys.readouterr().out
    assert f"L{first.layer}.H{first.head}" in out
    assert "−log p(·on) after ·are" in out
    told = json.loads((tmp_path / "r.json").read_text())
    assert set(told) == {"reversed_attention", "patching"}
    page = Parts((tmp_path / "r.html").read_text())
    assert page.count("svg") == 4
    assert f"L{first.layer}.H{first.head}" in page.texts["span"]
    assert "How the loss wants scores to change" in page.texts["h2"]
    assert told["reversed_attention"]["data_vars"]["loss"]["data"] == pytest.approx(float(found.loss))
