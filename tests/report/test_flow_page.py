"""The report of a text: whole, escaped, alone, and honest about what it leaves out."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.report.answers import DRAWS, answers
from rheoscope.report.findings import COVERS, findings
from rheoscope.report.flow_page import TITLE, flow_page, sentences, shortened
from rheoscope.report.layers import columns, prediction, said
from rheoscope.report.plot.heads import COLOURS
from rheoscope.report.plot.torn import picture_torn
from rheoscope.report.tokens import shown
from tests.report import cases
from tests.report.cases import FLOW, TEXT, Parts, model, told


@pytest.fixture(scope="module")
def html() -> str:
    return flow_page(model(), told()).html()


def test_a_page_is_well_formed_and_has_every_section(html: str) -> None:
    parts = Parts(html)
    assert [tag for tag in parts.open if tag not in ("html", "meta")] == []
    assert parts.texts["h1"] == [shortened(told().trace)]
    assert parts.texts["h2"] == [
        "The text", "Findings", "Layer by layer", "Where the prediction forms", "How tokens move", "Must tokens stay themselves?",
        "What stays of the geometry", "Do tokens gather?", "What clusters are made of", "Massive tokens",
        "Is it a gradient flow?", "What scores are made of", "The covers", "Does attention read similarity?",
        picture_torn(told().found["torn"]).title, "What kind of heads they are", "Where the numbers come from",
    ]  # fmt: skip
    for line in (*sentences(*findings(told().found)), *sentences(*findings(told().found, candidates=COVERS))):
        assert line in parts.texts["li"]
    assert f"{DRAWS} random heads for each" in html
    assert str(told().trace.facts["weights"]) in parts.texts["dd"]


def test_nothing_outside_the_page_is_asked_for(html: str) -> None:
    assert re.findall(r"https?:|url\(|@import|src=|href=", html) == []
    assert len(html) < 400_000


def test_every_picture_says_in_words_what_it_shows(html: str) -> None:
    sheets = [attrs for tag, attrs in Parts(html).elements if tag == "svg"]
    assert len(sheets) == 6 + 4 + 5 + 2 + 4 + 2 + 1 + 4 + shown_scores() + 6 + 2 + 7
    for attrs in sheets:
        assert attrs["role"] == "img"
        assert len(str(attrs["aria-label"])) > 30


def shown_scores() -> int:
    from rheoscope.report.plot.scores import picture_scores

    return len(picture_scores(told().found["scores"]).panels)


def test_the_table_holds_every_number_of_every_layer(html: str) -> None:
    table = html[html.index("<table") : html.index("</table>")]
    for column in columns(told().found):
        dataset = told().found[column.analysis]
        for layer in range(6):
            assert f"<span>{said(column.value(dataset, layer))}</span>" in table
    assert Parts(table).count("tr") == 7
    assert [len(re.findall("<td", row)) for row in table.split("<tr>")[2:]] == [len(columns(told().found)) + 2] * 6


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "a & b \"quoted\" 'so' </svg></title> $x$ <b>", "\x00\x1b[31m red"]
)
def test_a_text_stays_a_text(text: str) -> None:
    page = flow_page(model(), told(text)).html()
    plain = flow_page(model(), told("a b c d e f g h i j k l m n o p q r s t u v w")).html()
    parts = Parts(page)
    assert {tag for tag, _ in parts.elements} <= {tag for tag, _ in Parts(plain).elements}
    assert parts.count("script") == 1
    assert "alert(1)" not in "".join(parts.texts["script"])
    assert not any(name.startswith("on") for _, attrs in parts.elements for name in attrs)
    assert "\x1b" not in "".join(parts.texts["li"])
    assert parts.count("li") >= len(told(text).trace)


def test_a_token_stays_a_token() -> None:
    tokens = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', *told().trace.tokens[2:]]
    page = flow_page(model(), answers(model(), replace(told().trace, tokens=tokens))).html()
    parts = Parts(page)
    assert parts.count("script") == 1
    assert parts.count("img") == 0
    assert "<script>alert(1)</script>" in parts.texts["li"]


def test_the_table_of_a_layer_is_about_the_end_of_that_layer() -> None:
    found = told().found
    path, moves, cloud = (found[name] for name in ("trajectory", "transport", "clusters"))
    end = cloud.sel(point="L2.resid_post")
    speed = path.speed.values[:6]
    expected = {
        "moved": float(path.relative_speed.sel(step=["L2.resid_mid", "L2.resid_post"]).median("token").sum()),
        "attn": float(path.attention_share.sel(layer=2)),
        "straight": float(path.straightness_so_far.sel(layer=2).median()),
        "κ": float(moves.kappa.sel(step="L2.resid_post")),
        "energy": float((found["energy"].energy_after - found["energy"].energy).sel(layer=2).sum()),
        "clusters": float(end.cluster_count),
        "rank": float(end.effective_rank),
        "dim": float(end.intrinsic_dimension),
    }
    nulls = {
        "straight": float(np.median(np.sqrt((speed**2).sum(0)) / speed.sum(0))),
        "κ": float(moves.kappa_null.sel(step="L2.resid_post")),
        "clusters": float(end.cluster_count_null),
        "rank": float(end.effective_rank_null),
        "dim": float(end.intrinsic_dimension_null),
    }
    asked = columns(found)
    assert {c.title: c.value(found[c.analysis], 2) for c in asked} == pytest.approx(expected)
    assert {c.title: c.null(found[c.analysis], 2) for c in asked if c.null} == pytest.approx(nulls)
    word, chance = prediction(found, 5, model().words)
    assert word == shown(model().words([int(found["readout"].attrs["answer"])])[0])
    assert chance == pytest.approx(float(found["readout"].probability[-1]))


def test_massive_tokens_are_named_and_marked() -> None:
    trace = told().trace
    points = trace.points.clone()
    points[3, 4] *= 1000
    page = flow_page(model(), answers(model(), replace(trace, points=points))).html()
    assert Parts(page).count("li", "massive") == 1
    assert f"1 massive tokens left out of the clouds: 4 {trace.tokens[4].replace(' ', '·')}" in page


def test_a_short_text_says_what_is_left_out() -> None:
    page = flow_page(model(), told("a")).html()
    assert "clusters: this needs at least 3 tokens" in page
    assert "Do tokens gather?" not in page
    assert "Where the prediction forms" in page


def test_a_report_is_saved_replaced_aloud_and_refuses_what_is_no_trace(tmp_path: Path) -> None:
    trace, path = told().trace, tmp_path / "new" / "report.html"
    assert rs.save_report(model(), trace, path, space="sphere") == f"wrote {path}"
    assert rs.save_report(model(), trace, str(path)) == f"replaced {path}"
    assert "candidates were tested" in path.read_text()
    with pytest.raises(rs.RheoscopeError, match="a report is about one Trace, got list"):
        rs.save_report(model(), [trace], path)


def test_a_long_text_has_a_short_heading() -> None:
    assert shortened(told().trace) == TEXT[: TITLE - 1].rstrip() + "…"
    assert shortened(replace(told().trace, text="a\n b")) == "a b"
    assert shortened(replace(told().trace, text="")).startswith("<|endoftext|>The")


def test_every_analysis_of_the_flow_is_asked() -> None:
    assert tuple(told().found) == (*FLOW, *cases.COVERS)


def test_maps_of_heads_are_coloured_by_the_types_of_heads(html: str) -> None:
    typed = int(np.isin(told().found["head_types"].type.values, list(COLOURS)).sum())
    maps = 2 + shown_scores() + 5
    assert typed > 0
    own = html.count("<circle class=on")
    assert own == typed * (maps + 1)  # and once on the map of its own score
    bare = replace(told(), found={name: x for name, x in told().found.items() if name != "head_types"})
    assert "<circle class=on" not in flow_page(model(), bare).html()


def test_a_page_without_agreement_says_why_and_shows_the_rest() -> None:
    short = flow_page(model(), told("The keys to the old")).html()
    assert "agreement: agreement needs a query with at least 8 other keys" in short
    assert "torn: pairs are shown of the head furthest from similarity" in short
    assert "What kind of heads they are" in short
