"""Tests of the text of `readout`: the table of layers, and the lines about the next token and what writes it."""

from typing import Any

import numpy as np
import pytest

from rheoscope.flow.readout.words import N_LIKELIEST, blocks, next_token, written_by
from rheoscope.messages.numbers import format_percent
from rheoscope.picture.blocks import Table
from rheoscope.picture.token_labels import display_token, step_names
from rheoscope.space.results import Results
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


def test_the_next_token_is_named_with_the_step_since_which_it_leads() -> None:
    lens = flow_results().datasets["readout"]
    n_points = lens.sizes["point"]
    ranks = [9] * n_points
    ranks[-3:] = [1, 1, 1]
    line = next_token(results_with(lens.assign(rank=lens["rank"].copy(data=ranks))))
    (token,) = model().token_strings([int(lens.top_tokens.values[-1][0])])
    assert line.startswith(f"{display_token(token)} {format_percent(float(lens.top_probabilities[-1, 0]))}, ")
    assert line.count(", ") == N_LIKELIEST - 1
    assert line.endswith(f"; in first place since {step_names(lens.point.values)[-3]}")


def test_a_token_that_leads_for_a_while_counts_from_its_last_return() -> None:
    lens = flow_results().datasets["readout"]
    ranks = [1] * lens.sizes["point"]
    first = next_token(results_with(lens.assign(rank=lens["rank"].copy(data=ranks))))
    assert first.endswith(f"; in first place since {step_names(lens.point.values)[0]}")
    ranks[4] = 2
    later = next_token(results_with(lens.assign(rank=lens["rank"].copy(data=ranks))))
    assert later.endswith(f"; in first place since {step_names(lens.point.values)[5]}")


def test_the_largest_contributions_are_named_with_their_sign() -> None:
    lens = flow_results().datasets["readout"]
    contributions = np.zeros(lens.sizes["component"])
    contributions[[1, 3, 4, 6, 7]] = [0.5, -4.0, 3.0, 0.2, 1.0]
    planted = lens.assign(attribution=lens.attribution.copy(data=contributions), logit_above_mean=6.0)
    names = lens.component.values
    expected = ", ".join(
        f"{names[index]} {value}" for index, value in ((3, "-4.0"), (4, "+3.0"), (7, "+1.0"), (1, "+0.5"))
    )
    assert written_by(results_with(planted)) == f"{expected} … of 6.0 above the mean logit of all tokens"


def results_with(lens: Any) -> Results:
    return flow_results().with_result("readout", lens)
