"""From a Dataset to a figure: the file of its analysis, or its fields, and what is no Dataset of an analysis is told."""

from typing import Any

import numpy as np
import pytest
import xarray as xr

import rheoscope as rs
from rheoscope.flow.energy import picture as energy
from rheoscope.picture import field_panels
from rheoscope.report.draw_result import picture_of
from tests.pictures.cases import found, model


@pytest.mark.parametrize("draw", [rs.plot, picture_of])
def test_what_is_no_answer_of_an_analysis_is_told(draw: Any) -> None:
    with pytest.raises(rs.RheoscopeError, match="got Dataset; type rs"):
        draw(xr.Dataset())
    with pytest.raises(rs.RheoscopeError, match="got list"):
        draw([1])


def test_a_file_of_the_name_draws_an_analysis_and_the_fields_any_other() -> None:
    own = picture_of(found("energy"))
    assert [panel.title for panel in own.panels] == [panel.title for panel in energy.picture(found("energy")).panels]
    other = found("energy").assign_attrs(analysis="of_mine", question="")
    assert [panel.title for panel in picture_of(other).panels] == [
        panel.title for panel in field_panels.picture(other).panels
    ]
    assert picture_of(other).title == "Of mine"


def test_means_over_texts_are_drawn_from_what_is_left_of_the_fields() -> None:
    mean = found("transport").drop_vars("coupling").assign_attrs(texts=2, left_out=["coupling"])
    assert picture_of(mean).title.endswith("(over 2 texts)")
    assert rs.plot(mean).axes


def test_words_stand_in_the_place_of_ids() -> None:
    lens = found("readout")
    first = int(lens.top_tokens[0, 0])
    assert rs.plot(lens).axes[0].texts[0].get_text() == f"#{first}"
    assert rs.plot(lens, token_strings=model().token_strings).axes[0].texts[0].get_text() == model().token_strings(
        [first]
    )[0].replace(" ", "·")


def test_paper_has_the_numbers_of_the_answer() -> None:
    kept = found("geometry_kept")
    rsa = kept.rsa.sel(reference="embed").values
    paper = next(line for line in rs.plot(kept).axes[0].lines if line.get_label() == "embedding")
    assert np.allclose(paper.get_ydata(), rsa)
