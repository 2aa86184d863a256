"""From a Dataset to a figure, by the picture file of its analysis or by its fields."""

from typing import Any

import numpy as np
import pytest
import xarray as xr

import rheoscope as rs
from rheoscope.flow.energy import picture as energy
from rheoscope.picture import field_panels
from rheoscope.report.draw_result import picture_of
from tests.pictures.cases import example_result, model


@pytest.mark.parametrize("draw", [rs.plot, picture_of])
def test_plot_refuses_other_objects(draw: Any) -> None:
    with pytest.raises(rs.RheoscopeError, match="got Dataset; type rs"):
        draw(xr.Dataset())
    with pytest.raises(rs.RheoscopeError, match="got list"):
        draw([1])


def test_analyses_without_a_picture_file_are_drawn_from_their_fields() -> None:
    own = picture_of(example_result("energy"))
    assert [panel.title for panel in own.panels] == [
        panel.title for panel in energy.picture(example_result("energy")).panels
    ]
    second = example_result("energy").assign_attrs(analysis="of_mine", question="")
    assert [panel.title for panel in picture_of(second).panels] == [
        panel.title for panel in field_panels.picture(second).panels
    ]
    assert picture_of(second).title == "Of mine"


def test_means_over_texts_are_drawn() -> None:
    mean = example_result("transport").drop_vars("coupling").assign_attrs(texts=2, left_out=["coupling"])
    assert picture_of(mean).title.endswith("(over 2 texts)")
    assert rs.plot(mean).axes


def test_tokens_replace_ids() -> None:
    lens = example_result("readout")
    first = int(lens.top_tokens[0, 0])
    assert rs.plot(lens).axes[0].texts[0].get_text() == f"#{first}"
    assert rs.plot(lens, token_strings=model().token_strings).axes[0].texts[0].get_text() == model().token_strings(
        [first]
    )[0].replace(" ", "·")


def test_figures_show_the_numbers_of_the_result() -> None:
    remaining = example_result("geometry_kept")
    rsa = remaining.rsa.sel(reference="embed").values
    paper = next(line for line in rs.plot(remaining).axes[0].lines if line.get_label() == "embedding")
    assert np.allclose(paper.get_ydata(), rsa)
