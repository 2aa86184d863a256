"""What was run: headings that fit, tokens with what is known of them, what is left out, provenance."""

from dataclasses import replace

from rheoscope.report.report_settings import DRAWS
from rheoscope.report.text_blocks import TITLE, lead, left_out, massive, model_line, provenance, title, tokens
from rheoscope.space.results import Answers
from tests.report.cases import TEXT, model, told


def with_text(text: str) -> Answers:
    return replace(told(), trace=replace(told().text, text=text))


def test_a_long_text_has_a_short_heading() -> None:
    assert title(told()) == TEXT[: TITLE - 1].rstrip() + "…"
    assert title(with_text("a\n b")) == "a b"
    assert title(with_text("")).startswith("<|endoftext|>The")
    assert title(with_text("a\x1b[31m")) == "a�[31m"
    assert title(Answers(model().view, model().words, None)) == "the default model"


def test_tokens_tell_how_they_moved_and_massive_ones_that_they_are() -> None:
    strip = tokens(told())
    path = told().found["trajectory"]
    assert len(strip.words) == len(strip.tips) == len(told().text)
    assert strip.tips[3].startswith("token 3: path ")
    assert path.sizes["token"] == len(strip.tips)
    assert strip.marked == frozenset()
    points = told().text.points.clone()
    points[3, 4] *= 1000
    large = replace(told(), trace=replace(told().text, points=points), found={})
    assert tokens(large).marked == frozenset({4})
    assert tokens(large).tips[4].startswith("token 4: massive")
    assert tokens(large).tips[5] == "token 5"
    assert massive(large) == f"4 {told().text.tokens[4].replace(' ', '·')}"
    assert massive(told()) == "none"


def test_two_texts_share_a_lead() -> None:
    both = lead(told(), told("a"))
    assert both.startswith(model_line(told()))
    assert f"{len(told().text)} tokens;" in both
    assert "2 tokens;" in both


def test_what_is_left_out_has_its_reason() -> None:
    assert left_out(told()) == []
    (block,) = left_out(told("a"))
    assert all(" is left out: " in line for line in block.lines)  # type: ignore[union-attr]


def test_provenance_has_the_weights_and_every_setting_but_not_the_text() -> None:
    facts = provenance(told()).facts
    assert facts["weights"] == str(model().view.facts["weights"])
    assert facts["clusters: angle"] == str(told().found["clusters"].attrs["angle"])
    assert facts["agreement: draws"] == str(DRAWS)
    assert "text" not in facts
