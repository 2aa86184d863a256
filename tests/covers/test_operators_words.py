"""Heads as operators: medians over the heads of a layer, what they climb, and the heads at both ends."""

import numpy as np

from rheoscope.covers.operators.words import COLUMNS, SIGNED_FIELDS, blocks, extreme_heads
from rheoscope.covers.scores import words as score_words
from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import Lines, Table
from rheoscope.report.report_plans import REPORTS
from tests.report.cases import answered, told


def test_rows_are_medians_and_the_climb_is_a_sum() -> None:
    found, heads = told().datasets["operators"], told().datasets["energy"]
    (table,) = blocks(told())
    assert isinstance(table, Table)
    assert [cell.text for cell in table.header] == ["layer", *COLUMNS.values(), "climb"]
    medians = [format_number(float(np.median(found[name].values[3]))) for name in COLUMNS]
    climb = format_number(float((heads.energy_after - heads.energy).sel(layer=3).sum()))
    assert [cell.text for cell in table.rows[3]] == ["L3", *medians, climb]
    assert table.header[1].definition == found.symmetry.attrs["definition"]


def test_weights_alone_climb_nothing() -> None:
    alone = answered(REPORTS["operators"], None)
    (table,) = blocks(alone)
    assert isinstance(table, Table)
    assert [cell.text for cell in table.header] == ["layer", *COLUMNS.values()]
    assert score_words.blocks(alone) == []


def test_the_ends_of_every_signed_number_are_named() -> None:
    (block,) = extreme_heads(told())
    assert isinstance(block, Lines)
    assert len(block.lines) == len(SIGNED_FIELDS)
    values = told().datasets["operators"].copying.values
    (line,) = [line for line in block.lines if line.startswith("copying")]
    for end in (values.argmin(), values.argmax()):
        layer, head = divmod(int(end), 4)
        assert f"L{layer}.H{head} {format_number(float(values[layer, head]))}" in line


def test_what_scores_are_made_of_on_a_text() -> None:
    (table,) = score_words.blocks(told())
    assert isinstance(table, Table)
    assert table.note == "massive tokens left out: none"
    own = told().datasets["scores"]
    assert [cell.text for cell in table.rows[1][1:]] == [
        format_number(float(np.median(own[name].values[1]))) for name in score_words.COLUMNS
    ]
