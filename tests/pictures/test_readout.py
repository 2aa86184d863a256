"""The picture of the logit lens."""

from typing import Any

import numpy as np

import rheoscope as rs
from rheoscope.flow.readout.picture import MIN_KL
from rheoscope.picture.picture import Cells
from tests.pictures.cases import drawn, found, lines, model


def test_readout_tells_tokens_by_their_words() -> None:
    lens = found("readout")
    bare = drawn("readout").panels[0].marks[0]
    assert isinstance(bare, Cells)
    assert bare.texts[0][0] == f"#{int(lens.top_tokens[0, 0])}"
    worded = rs.plot(lens, token_strings=model().token_strings).axes[0]
    assert len(worded.texts) == 7 * 5
    places = drawn("readout").panels[-1].marks[0]
    assert isinstance(places, Cells)
    assert np.array_equal(places.values, lens.predicted_probability.values)
    assert places.texts[2][3] == f"#{int(lens.predicted_token[2, 3])}"
    assert {(6, at) for at in range(8)} <= set(places.marked)
    divergence = drawn("readout").panels[3]
    assert divergence.y.log
    assert lines(divergence)["KL"].y[-1] == MIN_KL
    assert worded.texts[0].get_text() == model().token_strings([int(lens.top_tokens[0, 0])])[0].replace(" ", "·")
    answers: Any = bare.marked
    assert (6, 0) in answers
