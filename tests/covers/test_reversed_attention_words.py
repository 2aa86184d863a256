"""How the loss wants attention to change, in words: the heads, the tokens, and whether it helps."""

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
from tests.report.cases import answered, model

TEXT = "The keys to the cabinet are"


@pytest.fixture(scope="module")
def answers() -> Results:
    return answered(REPORTS["reverse"], TEXT, target=" on", token=-1)


def test_heads_and_tokens_are_those_of_the_map(answers: Results) -> None:
    found = answers.datasets["reversed_attention"]
    layer, head = strongest_heads(found, 3)[0]
    assert float(found.norm[layer, head]) == float(found.norm.max())
    R = rs.reversed_map(model(), answers.required_trace, layer, head, " on")
    assert strongest_pulls(found, layer, head, -1)[0] == (int(R.sum(0).argmin()), pytest.approx(float(R.sum(0).min())))
    assert strongest_pulls(found, layer, head, 1)[0] == (int(R.sum(0).argmax()), pytest.approx(float(R.sum(0).max())))
    assert all(value < 0 for _, value in strongest_pulls(found, layer, head, -1, 99))
    table, _ = blocks(answers)
    assert isinstance(table, Table)
    assert "−log p(·on) after ·are" in table.heading
    assert [row[0].text for row in table.rows] == [
        f"L{layer}.H{head}" for layer, head in strongest_heads(found, MAX_HEADS)
    ]
    token, value = strongest_pulls(found, layer, head, -1)[0]
    assert table.rows[0][2].text.startswith(
        f"{answers.required_trace.tokens[token].replace(' ', '·')} {token} ({-value:.3f})"
    )
    assert not any("-" in row[at].text.replace("|-", "") for row in table.rows for at in (2, 3))


def test_one_head_and_no_pull_are_told_as_such(answers: Results) -> None:
    found = answers.datasets["reversed_attention"]

    def told(some: Any) -> list[str]:
        return gradient_sentences(
            Results(answers.view, answers.token_strings, answers.trace, {"reversed_attention": some})
        )

    assert "The strongest of 24 heads has" in told(found)[2]
    assert len(told(found.isel(layer=[0], head=[0]))) == 2
    still = found.assign(norm=0 * found.norm, gradient_sum=0 * found.gradient_sum)
    assert told(still)[1:] == ["The gradient is 0 in every head."]
    many = xr.concat([found] * 2, "layer", data_vars="minimal")
    assert "The strongest 2 of 48 heads have" in told(many)[2]


def test_sentences_tell_how_likely_how_gathered_and_whether_it_helps(answers: Results) -> None:
    found, patched = (answers.datasets[name] for name in ("reversed_attention", "attention_patching"))
    likely, hardest, gathered, helps = gradient_sentences(answers)
    assert f"·on the probability {math.exp(-float(found.loss)):.3g}" in likely
    layer, head = strongest_heads(found, 1)[0]
    assert hardest.startswith(f"L{layer}.H{head} has the largest gradient.")
    assert f"{float(found.norm.max() / found.norm.sum()):.0%} of the sum of ‖R‖" in gathered
    assert f"changes the loss to {float(patched.loss.sel(eta=PATCH_ETA)):.3f}" in helps
    assert len(patched.eta) > 2  # the page has the whole curve, and the same step


def test_without_patching_three_sentences_stand(answers: Results) -> None:
    bare = Results(
        answers.view,
        answers.token_strings,
        answers.trace,
        {"reversed_attention": answers.datasets["reversed_attention"]},
    )
    assert gradient_sentences(bare) == gradient_sentences(answers)[:3]
    assert blocks(Results(answers.view, answers.token_strings, None)) == []
