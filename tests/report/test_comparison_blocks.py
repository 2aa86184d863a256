"""The sentences, tables, page and picture of a comparison of two models."""

from functools import cache
from typing import Any

import pytest
import torch
import xarray as xr

import rheoscope as rs
from rheoscope.messages.catalogue import translate
from rheoscope.messages.message import Message
from rheoscope.picture.blocks import Drawing, Lines, Table
from rheoscope.report.compare_models import build_page
from rheoscope.report.comparison_blocks import comparison_blocks, title
from tests.cases import model
from tests.model_comparison.changed_models import TEXTS, changed, deep_llama
from tests.report.cases import check_all_renderers


@cache
def comparison(name: str) -> Any:
    cases = {
        "head": lambda: rs.compare(model("gpt2"), changed("gpt2", 1, 2, "W_V", dtype=torch.float32), TEXTS[:4]),
        "weights": lambda: rs.compare(model("gpt2"), changed("gpt2", 1, 2, "W_V", dtype=torch.float32)),
        "same": lambda: rs.compare(model("gpt2"), model("gpt2"), TEXTS[0]),
        "shapes": lambda: rs.compare(rs.load(deep_llama()), model("gpt2"), TEXTS[:2]),
    }
    return cases[name]()


def sentences(name: str) -> str:
    lines = comparison_blocks(comparison(name))[0]
    assert isinstance(lines, Lines)
    return " ".join(lines.lines)


def table(name: str, heading: str) -> Table:
    return next(
        block for block in comparison_blocks(comparison(name)) if isinstance(block, Table) and heading in block.heading
    )


def test_sentences_name_the_changed_head_the_depth_and_the_predictions() -> None:
    text_of_lines = sentences("head")
    assert "1 of 8 heads have another M or F, in L1." in text_of_lines
    assert "L1.H2 changed most" in text_of_lines
    assert "95 % interval" in text_of_lines
    assert "4 texts" in text_of_lines
    assert "MLP" not in text_of_lines  # they are equal


def test_only_changed_heads_are_listed() -> None:
    rows = table("head", "most changed").rows
    assert [row[0].text for row in rows] == ["L1.H2"]
    assert rows[0][1].small_text  # an interval
    assert [row[0].text for row in table("weights", "most changed").rows] == ["L1.H2"]
    assert not any(
        "most changed" in block.heading for block in comparison_blocks(comparison("same")) if isinstance(block, Table)
    )


def test_equal_models_are_said_to_be_equal() -> None:
    text_of_lines = sentences("same")
    assert "Both models have the same weights." in text_of_lines
    assert "never differ" in text_of_lines


def test_the_tokens_of_a_single_text_have_the_step_at_which_they_diverge() -> None:
    result = rs.compare(model("gpt2"), changed("gpt2", 1, 2, "W_V", dtype=torch.float32), TEXTS[0], threshold=1e-4)
    rows = next(block for block in comparison_blocks(result) if block.heading.startswith("Tokens")).rows
    assert rows[0][0].text.endswith(f"at {int(result.token_kl.values.argmax())}")
    assert {row[1].text for row in rows} == {"L1 attn"}
    never = table("same", "Tokens").rows
    assert {row[1].text for row in never} == {"never"}


def test_models_of_other_shapes_say_what_is_not_compared() -> None:
    text_of_lines = sentences("shapes")
    assert "Not everything is compared" in text_of_lines
    assert "most similar to the layer at the same relative depth" in text_of_lines
    assert len(table("shapes", "Layers of both models").rows) == 5
    assert len(table("shapes", "need no common coordinates").rows) == 3


def test_without_anything_to_draw_there_is_no_picture() -> None:
    dataset = rs.compare(rs.load(deep_llama()), model("gpt2"))
    assert len(dataset.data_vars)
    assert not any(isinstance(block, Drawing) for block in comparison_blocks(dataset))


@pytest.mark.parametrize("name", ["head", "shapes"])
def test_the_picture_is_drawn_by_every_renderer(name: str) -> None:
    (drawing,) = (block for block in comparison_blocks(comparison(name)) if isinstance(block, Drawing))
    check_all_renderers(drawing.picture)


def test_the_page_has_both_names_and_the_numbers() -> None:
    page = build_page(comparison("head")).to_html()
    assert "L1.H2" in page
    assert "Origin of the numbers" in page
    assert "<svg" in page


def test_the_untrained_control_has_a_name_in_every_language() -> None:
    name = Message("{name}, untrained (seed {seed})", name=Message("the default model"), seed=0)
    dataset = xr.Dataset(attrs={"model_first": name, "model_second": "the default model"})
    assert translate(title(dataset), "zh") == "默认模型，未训练（种子 0） 与 the default model"
