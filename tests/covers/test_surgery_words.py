"""Tests of the text of `surgery`: costs, their intervals and the comparison with ablation."""

import pytest

import rheoscope as rs
from rheoscope.covers.surgery.words import CHANGE_NAMES, ablation_sentence, blocks, cost_sentences, head_cost_table
from rheoscope.covers.text_batches import split_into_windows
from rheoscope.picture.blocks import Lines, Table
from rheoscope.report.report_plans import REPORTS
from rheoscope.space.results import Results
from tests.report.cases import model, report_results

TEXT = "The keys to the cabinet are on the table, and the man who has them went out to the garden to find his dog. "


def test_a_difference_is_significant_only_if_its_interval_excludes_0() -> None:
    dataset = rs.surgery(model(), split_into_windows(model(), TEXT * 3, 16), M="symmetric", heads=[(2, 1), (3, 2)])
    sentences = cost_sentences(dataset)
    cost = float(dataset.cost.sel(change="edit"))
    assert f"{'rises' if cost > 0 else 'falls'} by {abs(cost):.4f}" in sentences[0]
    row = dataset.sel(change="size")
    is_insignificant = "does not differ from it significantly" in sentences[1]
    assert is_insignificant == (float(row.excess_low) <= 0 <= float(row.excess_high))
    insignificant = dataset.assign(excess_low=dataset.excess_low - 9, excess_high=dataset.excess_high + 9)
    assert "does not differ from it significantly" in cost_sentences(insignificant)[1]
    significant = dataset.assign(excess_low=abs(dataset.excess_low) + 1, excess_high=abs(dataset.excess_high) + 2)
    assert "does not differ from it significantly" not in cost_sentences(significant)[1]
    short = rs.surgery(model(), TEXT, M="symmetric", heads=[(2, 1)])
    assert "use a longer one" in cost_sentences(short)[1]


def test_every_change_has_a_row() -> None:
    results = report_results(REPORTS["surgery"], TEXT, M="symmetric", F="rank 8", heads=[(2, 1), (3, 2)])
    table, sentences = blocks(results)
    assert isinstance(table, Table)
    assert isinstance(sentences, Lines)
    dataset = results.datasets["surgery"]
    assert [row[0].text for row in table.rows] == [CHANGE_NAMES[str(name)] for name in dataset.change.values]
    assert [row[1].text for row in table.rows] == [f"{float(cost):+.4f}" for cost in dataset.cost.values]
    assert {row[2].text for row in table.rows} == {dataset.attrs["intervals"]}
    assert "no interval" in dataset.attrs["intervals"]
    assert "in L2.H1 L3.H2, nats per token" in table.heading
    assert "in L2.H1 L3.H2 it falls by" in sentences.lines[0]
    assert blocks(Results(model().view, model().token_strings, None)) == []


def test_heads_edited_alone_are_sorted_by_cost() -> None:
    dataset = rs.surgery(model(), TEXT, M="symmetric", heads=[(0, 1), (2, 1), (3, 2)], per_head=True)
    table = head_cost_table(dataset, max_heads=2)
    costs = {
        (layer, head): float(dataset.head_cost.sel(change="edit", layer=layer, head=head))
        for layer, head in ((0, 1), (2, 1), (3, 2))
    }
    order = sorted(costs, key=lambda head_index: -costs[head_index])[:2]
    assert [row[0].text for row in table.rows] == [f"L{layer}.H{head}" for layer, head in order]
    assert [row[1].text for row in table.rows] == [f"{costs[head_index]:+.4f}" for head_index in order]
    results = report_results(REPORTS["surgery"], TEXT, M="symmetric", heads=[(0, 1)], per_head=True)
    (single_head_table,) = blocks(results)
    assert isinstance(single_head_table, Table)
    assert len(single_head_table.rows) == 1
    assert float(single_head_table.rows[0][1].text) == pytest.approx(costs[0, 1], abs=1e-4)


@pytest.mark.parametrize(
    ("edit", "ablation", "sentence"),
    [
        (0.02, 0.1, "Ablating these heads costs +0.1000. The replacement costs 20 % of that."),
        (-0.02, 0.1, "Ablating these heads costs +0.1000. The replacement costs nothing."),
        (0.02, -0.1, "Ablating these heads costs nothing here: the loss falls by 0.1000."),
        (0.02, -0.00001, "Ablating these heads costs nothing here: the loss does not change."),
    ],
)
def test_a_share_of_the_ablation_cost_is_given_only_if_ablation_costs_something(
    edit: float, ablation: float, sentence: str
) -> None:
    assert ablation_sentence(edit, ablation) == sentence
