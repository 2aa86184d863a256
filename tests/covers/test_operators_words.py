"""Tests of the text of `operators` and `scores`: tables of medians per layer, and the heads with extreme values."""

import numpy as np

from rheoscope.covers.operators.words import COLUMNS, SIGNED_FIELDS, blocks, extreme_heads
from rheoscope.covers.scores import words as score_words
from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import Lines, Table
from rheoscope.report.report_plans import REPORTS
from tests.report.cases import flow_results, report_results


def test_a_row_has_medians_over_heads_and_the_summed_energy_change() -> None:
    operators, energy = flow_results().datasets["operators"], flow_results().datasets["energy"]
    (table,) = blocks(flow_results())
    assert isinstance(table, Table)
    assert [cell.text for cell in table.header] == ["layer", *COLUMNS.values(), "climb"]
    medians = [format_number(float(np.median(operators[name].values[3]))) for name in COLUMNS]
    climb = format_number(float((energy.energy_after - energy.energy).sel(layer=3).sum()))
    assert [cell.text for cell in table.rows[3]] == ["L3", *medians, climb]
    assert table.header[1].definition == operators.symmetry.attrs["definition"]


def test_without_a_text_there_is_no_energy_column() -> None:
    alone = report_results(REPORTS["operators"], None)
    (table,) = blocks(alone)
    assert isinstance(table, Table)
    assert [cell.text for cell in table.header] == ["layer", *COLUMNS.values()]
    assert score_words.blocks(alone) == []


def test_the_heads_with_the_smallest_and_largest_value_are_named() -> None:
    (block,) = extreme_heads(flow_results())
    assert isinstance(block, Lines)
    assert len(block.lines) == len(SIGNED_FIELDS)
    values = flow_results().datasets["operators"].copying.values
    (line,) = [line for line in block.lines if line.startswith("copying")]
    for end in (values.argmin(), values.argmax()):
        layer, head = divmod(int(end), 4)
        assert f"L{layer}.H{head} {format_number(float(values[layer, head]))}" in line


def test_the_table_of_scores_has_medians_over_heads() -> None:
    (table,) = score_words.blocks(flow_results())
    assert isinstance(table, Table)
    assert table.note == "massive tokens left out: none"
    own = flow_results().datasets["scores"]
    assert [cell.text for cell in table.rows[1][1:]] == [
        format_number(float(np.median(own[name].values[1]))) for name in score_words.COLUMNS
    ]
