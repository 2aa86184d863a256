"""Tests of the readout table: one row per layer with probability, rank, entropy and the most likely tokens."""

import pytest

from rheoscope.flow.readout.words import N_LIKELIEST, QUESTION, blocks
from rheoscope.picture.blocks import Table
from rheoscope.picture.token_labels import display_token
from tests.report import planted
from tests.report.cases import flow_results, model


def test_table_has_a_row_for_the_embedding_and_every_layer() -> None:
    lens = flow_results().datasets["readout"]
    (table,) = blocks(flow_results())
    assert isinstance(table, Table)
    assert [row[0].text for row in table.rows] == ["embed", *(f"L{layer}" for layer in range(6))]
    target = display_token(model().token_strings([int(lens.attrs["target"])])[0])
    assert table.heading.endswith(f"the target is {target}")
    last = table.rows[-1]
    end = lens.sel(point="L5.resid_post")
    assert float(last[1].text) == pytest.approx(float(end.probability), abs=5e-4)
    assert int(last[2].text) == int(end["rank"]) == 1
    assert float(last[3].text) == pytest.approx(float(end.entropy), abs=5e-3)
    expected = [
        display_token(token_text)
        for token_text in model().token_strings([int(token) for token in end.top_tokens.values[:N_LIKELIEST]])
    ]
    assert [entry.rpartition(" ")[0] for entry in last[4].text.split("  ")] == expected
    assert expected[0] == target


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (2, "Mean loss 3 nats per token over the first 2 positions (permuted next tokens 8.0"),
        (90, "Mean loss 3 nats per token over 2 evenly spaced of 90 positions (permuted next tokens 8.0"),
    ],
)
def test_the_loss_is_positive_and_names_its_positions(token: int, expected: str) -> None:
    lens = planted.readout(-3.0).assign_attrs(token=token)
    line = str(QUESTION.judge(planted.results({"readout": lens}), QUESTION).line)
    assert expected in line, line
    assert "logit 9)" in line
    assert "5 of 6 above the mean logit" in line
