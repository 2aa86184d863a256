"""Titles, tokens with tips, skipped analyses and provenance."""

from dataclasses import replace

from rheoscope.covers.agreement.analysis import AGREEMENT
from rheoscope.report.text_blocks import (
    MAX_TITLE_CHARS,
    lead_text,
    massive_tokens_text,
    model_line,
    provenance_block,
    report_title,
    skipped_blocks,
    token_block,
)
from rheoscope.space.results import Results
from tests.report.cases import TEXT, flow_results, model


def with_text(text: str) -> Results:
    return replace(flow_results(), trace=replace(flow_results().required_trace, text=text))


def test_a_long_text_has_a_short_heading() -> None:
    assert report_title(with_text(TEXT * 2)) == (TEXT * 2)[: MAX_TITLE_CHARS - 1].rstrip() + "…"
    assert report_title(with_text("a\n b")) == "a b"
    assert report_title(with_text("")).startswith("<|endoftext|>The")
    assert report_title(with_text("a\x1b[31m")) == "a�[31m"
    assert report_title(Results(model().view, model().token_strings, None)) == "the default model"


def test_tokens_have_tips_and_massive_ones_are_marked() -> None:
    strip = token_block(flow_results())
    path = flow_results().datasets["trajectory"]
    assert len(strip.token_texts) == len(strip.tips) == len(flow_results().required_trace)
    assert strip.tips[3].startswith("token 3: path ")
    assert path.sizes["token"] == len(strip.tips)
    assert strip.marked_tokens == frozenset()
    points = flow_results().required_trace.points.clone()
    points[3, 4] *= 1000
    large = replace(flow_results(), trace=replace(flow_results().required_trace, points=points), datasets={})
    assert token_block(large).marked_tokens == frozenset({4})
    assert token_block(large).tips[4].startswith("token 4: massive")
    assert token_block(large).tips[5] == "token 5"
    assert massive_tokens_text(large) == f"{flow_results().required_trace.tokens[4].replace(' ', '·')} at 4"
    assert massive_tokens_text(flow_results()) == "none"


def test_two_texts_share_a_lead() -> None:
    lead = lead_text(flow_results(), flow_results("a"))
    assert lead.startswith(model_line(flow_results()))
    assert f"{len(flow_results().required_trace)} tokens;" in lead
    assert "2 tokens;" in lead


def test_skipped_analyses_have_a_reason() -> None:
    assert skipped_blocks(flow_results()) == []
    (block,) = skipped_blocks(flow_results("a"))
    assert all(" was skipped: " in line for line in block.lines)  # type: ignore[union-attr]


def test_provenance_has_the_weights_and_every_setting_but_not_the_text() -> None:
    facts = provenance_block(flow_results()).facts
    assert facts["weights"] == str(model().view.facts["weights"])
    assert facts["clusters: angle"] == str(flow_results().datasets["clusters"].attrs["angle"])
    assert facts["agreement: draws"] == str(AGREEMENT.report["draws"])
    assert "text" not in facts
