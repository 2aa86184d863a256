"""Heads as operators: medians over the heads of a layer, what they climb, and the heads at both ends."""

import numpy as np

from rheoscope.covers.operators.words import COLUMNS, SCORES, SIGNED, blocks, extremes, scores
from rheoscope.messages.numbers import short
from rheoscope.picture.blocks import Lines, Table
from rheoscope.report.report_plans import JOBS
from tests.report.cases import answered, told


def test_rows_are_medians_and_the_climb_is_a_sum() -> None:
    found, heads = told().found["operators"], told().found["energy"]
    (table,) = blocks(told())
    assert isinstance(table, Table)
    assert [cell.text for cell in table.header] == ["layer", *COLUMNS.values(), "climb"]
    medians = [short(float(np.median(found[name].values[3]))) for name in COLUMNS]
    climb = short(float((heads.energy_after - heads.energy).sel(layer=3).sum()))
    assert [cell.text for cell in table.rows[3]] == ["L3", *medians, climb]
    assert table.header[1].title == found.symmetry.attrs["definition"]


def test_weights_alone_climb_nothing() -> None:
    alone = answered(JOBS["operators"], None)
    (table,) = blocks(alone)
    assert isinstance(table, Table)
    assert [cell.text for cell in table.header] == ["layer", *COLUMNS.values()]
    assert scores(alone) == []


def test_the_ends_of_every_signed_number_are_named() -> None:
    (block,) = extremes(told())
    assert isinstance(block, Lines)
    assert len(block.lines) == len(SIGNED)
    values = told().found["operators"].copying.values
    (line,) = [line for line in block.lines if line.startswith("copying")]
    for end in (values.argmin(), values.argmax()):
        layer, head = divmod(int(end), 4)
        assert f"L{layer}.H{head} {short(float(values[layer, head]))}" in line


def test_what_scores_are_made_of_on_a_text() -> None:
    (table,) = scores(told())
    assert isinstance(table, Table)
    assert table.note == "massive tokens left out: none"
    own = told().found["scores"]
    assert [cell.text for cell in table.rows[1][1:]] == [
        short(float(np.median(own[name].values[1]))) for name in SCORES
    ]
