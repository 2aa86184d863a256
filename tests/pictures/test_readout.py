"""Tests of the readout plot."""

from typing import Any

import numpy as np

import rheoscope as rs
from rheoscope.flow.readout.picture import MIN_KL
from rheoscope.picture.picture import Cells
from tests.pictures.cases import example_picture, example_result, lines, model


def test_tables_show_token_texts_or_ids_and_frame_the_target() -> None:
    lens = example_result("readout")
    table = example_picture("readout").panels[0].marks[0]
    assert isinstance(table, Cells)
    assert table.texts[0][0] == f"#{int(lens.top_tokens[0, 0])}"
    axes = rs.plot(lens, token_strings=model().token_strings).axes[0]
    assert len(axes.texts) == 7 * 5
    by_position = example_picture("readout").panels[-1].marks[0]
    assert isinstance(by_position, Cells)
    assert np.array_equal(by_position.values, lens.predicted_probability.values)
    assert by_position.texts[2][3] == f"#{int(lens.predicted_token[2, 3])}"
    assert {(6, column) for column in range(8)} <= set(by_position.marked)
    divergence = example_picture("readout").panels[3]
    assert divergence.y.log
    assert lines(divergence)["KL"].y[-1] == MIN_KL
    assert axes.texts[0].get_text() == model().token_strings([int(lens.top_tokens[0, 0])])[0].replace(" ", "·")
    marked_cells: Any = table.marked
    assert (6, 0) in marked_cells
