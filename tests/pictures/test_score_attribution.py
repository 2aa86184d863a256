"""Tests of the picture of `score_attribution`."""

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.covers.score_attribution.picture import MAX_COMPONENTS, REST_LABEL, merge_small_components
from rheoscope.report.draw_result import picture_of
from tests.pictures.cases import TEXT, example_result, model, panel_with_title


def test_cells_add_up_to_the_score_and_bars_start_with_the_strongest_pair() -> None:
    dataset = example_result("score_attribution")
    values, queries, keys = merge_small_components(dataset)
    assert values.shape == (len(queries), len(keys)) == (MAX_COMPONENTS + 1, MAX_COMPONENTS + 1)
    assert queries[-1] == keys[-1] == REST_LABEL
    assert values.sum() + float(dataset.position_bias) == pytest.approx(float(dataset.score), abs=1e-4)
    early = rs.score_attribution(model().trace(TEXT), layer=0, head=1, query=5, key=2)
    assert REST_LABEL not in merge_small_components(early)[1]
    strongest = panel_with_title("score_attribution", "The strongest pairs")
    top = np.unravel_index(np.abs(dataset.contribution.values).argmax(), dataset.contribution.shape)
    assert strongest.y.names[-1] == f"{dataset['from'].values[top[0]]} × {dataset.to.values[top[1]]}"
    assert early.attrs["pairs"].startswith("5 ")
    assert picture_of(early).title == f"Attribution of a score of L0.H1: token {early.attrs['pairs']}"
    assert picture_of(dataset).title == "Attribution of the scores of L4.H1 on the whole text"
