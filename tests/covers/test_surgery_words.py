"""What a change costs, in words: only what the intervals allow."""

import pytest

import rheoscope as rs
from rheoscope.covers.surgery.words import CHANGE_NAMES, ablation_sentence, blocks, cost_sentences, head_cost_table
from rheoscope.covers.text_batches import split_into_windows
from rheoscope.picture.blocks import Lines, Table
from rheoscope.report.report_plans import REPORTS
from rheoscope.space.results import Results
from tests.report.cases import answered, model

TEXT = "The keys to the cabinet are on the table, and the man who has them went out to the garden to find his dog. "


def test_a_difference_is_told_only_where_its_interval_leaves_out_0() -> None:
    found = rs.surgery(model(), split_into_windows(model(), TEXT * 8, 32), M="symmetric")
    said = cost_sentences(found)
    assert f"rises by {float(found.cost.sel(change='edit')):.4f}" in said[0]
    row = found.sel(change="size")
    told = "does not differ from it significantly" in said[1]
    assert told == (float(row.excess_low) <= 0 <= float(row.excess_high))
    unsure = found.assign(excess_low=found.excess_low - 9, excess_high=found.excess_high + 9)
    assert "does not differ from it significantly" in cost_sentences(unsure)[1]
    sure = found.assign(excess_low=abs(found.excess_low) + 1, excess_high=abs(found.excess_high) + 2)
    assert "does not differ from it significantly" not in cost_sentences(sure)[1]
    short = rs.surgery(model(), TEXT, M="symmetric")
    assert "use a longer one" in cost_sentences(short)[1]


def test_every_change_has_its_row() -> None:
    answers = answered(REPORTS["surgery"], TEXT, M="symmetric", F="rank 8", heads=[(2, 1), (3, 2)])
    table, said = blocks(answers)
    assert isinstance(table, Table)
    assert isinstance(said, Lines)
    found = answers.datasets["surgery"]
    assert [row[0].text for row in table.rows] == [CHANGE_NAMES[str(name)] for name in found.change.values]
    assert [row[1].text for row in table.rows] == [f"{float(cost):+.4f}" for cost in found.cost.values]
    assert {row[2].text for row in table.rows} == {"too little text"}
    assert "in L2.H1 L3.H2, nats per token" in table.heading
    assert "in L2.H1 L3.H2 it falls by" in said.lines[0]
    assert blocks(Results(model().view, model().token_strings, None)) == []


def test_heads_changed_alone_are_ordered_by_what_they_cost() -> None:
    found = rs.surgery(model(), TEXT, M="symmetric", heads=[(0, 1), (2, 1), (3, 2)], per_head=True)
    table = head_cost_table(found, max_heads=2)
    costs = {
        (layer, head): float(found.head_cost.sel(change="edit", layer=layer, head=head))
        for layer, head in ((0, 1), (2, 1), (3, 2))
    }
    order = sorted(costs, key=lambda at: -costs[at])[:2]
    assert [row[0].text for row in table.rows] == [f"L{layer}.H{head}" for layer, head in order]
    assert [row[1].text for row in table.rows] == [f"{costs[at]:+.4f}" for at in order]
    answers = answered(REPORTS["surgery"], TEXT, M="symmetric", heads=[(0, 1)], per_head=True)
    (one,) = blocks(answers)
    assert isinstance(one, Table)
    assert len(one.rows) == 1
    assert float(one.rows[0][1].text) == pytest.approx(costs[0, 1], abs=1e-4)


@pytest.mark.parametrize(
    ("edit", "silenced", "says"),
    [
        (0.02, 0.1, "Ablating these heads costs +0.1000. The replacement costs 20% of that."),
        (-0.02, 0.1, "Ablating these heads costs +0.1000. The replacement costs nothing."),
        (0.02, -0.1, "Ablating these heads costs nothing here: the loss falls by 0.1000."),
        (0.02, -0.00001, "Ablating these heads costs nothing here: the loss does not change."),
    ],
)
def test_nothing_has_a_share_of_nothing(edit: float, silenced: float, says: str) -> None:
    assert ablation_sentence(edit, silenced) == says
