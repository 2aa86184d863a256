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
from tests.report.cases import TEXT, model, told


def with_text(text: str) -> Results:
    return replace(told(), trace=replace(told().required_trace, text=text))


def test_a_long_text_has_a_short_heading() -> None:
    assert report_title(told()) == TEXT[: MAX_TITLE_CHARS - 1].rstrip() + "…"
    assert report_title(with_text("a\n b")) == "a b"
    assert report_title(with_text("")).startswith("<|endoftext|>The")
    assert report_title(with_text("a\x1b[31m")) == "a�[31m"
    assert report_title(Results(model().view, model().token_strings, None)) == "the default model"


def test_tokens_have_tips_and_massive_ones_are_marked() -> None:
    strip = token_block(told())
    path = told().datasets["trajectory"]
    assert len(strip.token_texts) == len(strip.tips) == len(told().required_trace)
    assert strip.tips[3].startswith("token 3: path ")
    assert path.sizes["token"] == len(strip.tips)
    assert strip.marked_tokens == frozenset()
    points = told().required_trace.points.clone()
    points[3, 4] *= 1000
    large = replace(told(), trace=replace(told().required_trace, points=points), datasets={})
    assert token_block(large).marked_tokens == frozenset({4})
    assert token_block(large).tips[4].startswith("token 4: massive")
    assert token_block(large).tips[5] == "token 5"
    assert massive_tokens_text(large) == f"4 {told().required_trace.tokens[4].replace(' ', '·')}"
    assert massive_tokens_text(told()) == "none"


def test_two_texts_share_a_lead() -> None:
    lead = lead_text(told(), told("a"))
    assert lead.startswith(model_line(told()))
    assert f"{len(told().required_trace)} tokens;" in lead
    assert "2 tokens;" in lead


def test_skipped_analyses_have_a_reason() -> None:
    assert skipped_blocks(told()) == []
    (block,) = skipped_blocks(told("a"))
    assert all(" was skipped: " in line for line in block.lines)  # type: ignore[union-attr]


def test_provenance_has_the_weights_and_every_setting_but_not_the_text() -> None:
    facts = provenance_block(told()).facts
    assert facts["weights"] == str(model().view.facts["weights"])
    assert facts["clusters: angle"] == str(told().datasets["clusters"].attrs["angle"])
    assert facts["agreement: draws"] == str(AGREEMENT.report["draws"])
    assert "text" not in facts
