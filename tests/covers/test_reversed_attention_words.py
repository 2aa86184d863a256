"""Tests of the text of `reversed_attention`: the strongest heads, the strongest tokens and the effect of patching."""

import math
from typing import Any

import pytest
import xarray as xr

import rheoscope as rs
from rheoscope.covers.reversed_attention.words import (
    MAX_HEADS,
    PATCH_ETA,
    blocks,
    gradient_sentences,
    strongest_heads,
    strongest_pulls,
)
from rheoscope.picture.blocks import Table
from rheoscope.report.report_plans import REPORTS
from rheoscope.space.results import Results
from tests.report.cases import model, report_results

TEXT = "The keys to the cabinet are"


@pytest.fixture(scope="module")
def answers() -> Results:
    return report_results(REPORTS["reverse"], TEXT, target=" on", token=-1)


def test_heads_and_tokens_are_those_of_the_map(answers: Results) -> None:
    dataset = answers.datasets["reversed_attention"]
    layer, head = strongest_heads(dataset, 3)[0]
    assert float(dataset.norm[layer, head]) == float(dataset.norm.max())
    R = rs.reversed_map(model(), answers.required_trace, layer, head, " on")
    assert strongest_pulls(dataset, layer, head, -1)[0] == (
        int(R.sum(0).argmin()),
        pytest.approx(float(R.sum(0).min())),
    )
    assert strongest_pulls(dataset, layer, head, 1)[0] == (int(R.sum(0).argmax()), pytest.approx(float(R.sum(0).max())))
    assert all(value < 0 for _, value in strongest_pulls(dataset, layer, head, -1, 99))
    table, _ = blocks(answers)
    assert isinstance(table, Table)
    assert "−log p(·on) after ·are" in table.heading
    assert [row[0].text for row in table.rows] == [
        f"L{layer}.H{head}" for layer, head in strongest_heads(dataset, MAX_HEADS)
    ]
    token, value = strongest_pulls(dataset, layer, head, -1)[0]
    assert table.rows[0][2].text.startswith(
        f"{answers.required_trace.tokens[token].replace(' ', '·')} {token} ({-value:.3f})"
    )
    assert not any("-" in row[column].text.replace("|-", "") for row in table.rows for column in (2, 3))


def test_sentences_for_a_single_head_and_for_a_zero_gradient(answers: Results) -> None:
    dataset = answers.datasets["reversed_attention"]

    def sentences(reversed_attention: Any) -> list[str]:
        return gradient_sentences(
            Results(answers.view, answers.token_strings, answers.trace, {"reversed_attention": reversed_attention})
        )

    assert "The strongest of 24 heads has" in sentences(dataset)[2]
    assert len(sentences(dataset.isel(layer=[0], head=[0]))) == 2
    zero_gradient = dataset.assign(norm=0 * dataset.norm, gradient_sum=0 * dataset.gradient_sum)
    assert sentences(zero_gradient)[1:] == ["The gradient is 0 in every head."]
    doubled = xr.concat([dataset] * 2, "layer", data_vars="minimal")
    assert "The strongest 2 of 48 heads have" in sentences(doubled)[2]


def test_sentences_give_probability_strongest_head_concentration_and_effect(answers: Results) -> None:
    dataset, patched = (answers.datasets[name] for name in ("reversed_attention", "attention_patching"))
    probability, strongest, concentration, effect = gradient_sentences(answers)
    assert f"·on the probability {math.exp(-float(dataset.loss)):.3g}" in probability
    layer, head = strongest_heads(dataset, 1)[0]
    assert strongest.startswith(f"L{layer}.H{head} has the largest gradient.")
    assert f"{100 * float(dataset.norm.max() / dataset.norm.sum()):.0f} % of the sum of ‖R‖" in concentration
    assert f"changes the loss to {float(patched.loss.sel(eta=PATCH_ETA)):.3f}" in effect
    assert len(patched.eta) > 2  # the page has the full curve, which contains this step


def test_without_patching_the_sentence_on_its_effect_is_missing(answers: Results) -> None:
    bare = Results(
        answers.view,
        answers.token_strings,
        answers.trace,
        {"reversed_attention": answers.datasets["reversed_attention"]},
    )
    assert gradient_sentences(bare) == gradient_sentences(answers)[:3]
    assert blocks(Results(answers.view, answers.token_strings, None)) == []
