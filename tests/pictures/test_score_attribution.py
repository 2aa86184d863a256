"""The picture of why a head looks there."""

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.covers.score_attribution.picture import MAX_COMPONENTS, REST_LABEL, merge_small_components
from rheoscope.report.draw_result import picture_of
from tests.pictures.cases import TEXT, found, model, titled


def test_all_squares_of_a_head_add_up_to_the_score() -> None:
    dataset = found("score_attribution")
    values, queries, keys = merge_small_components(dataset)
    assert values.shape == (len(queries), len(keys)) == (MAX_COMPONENTS + 1, MAX_COMPONENTS + 1)
    assert queries[-1] == keys[-1] == REST_LABEL
    assert values.sum() + float(dataset.position_bias) == pytest.approx(float(dataset.score), abs=1e-4)
    small = rs.score_attribution(model().trace(TEXT), layer=0, head=1, query=5, key=2)
    assert REST_LABEL not in merge_small_components(small)[1]
    strongest = titled("score_attribution", "The strongest pairs")
    top = np.unravel_index(np.abs(dataset.contribution.values).argmax(), dataset.contribution.shape)
    assert strongest.y.names[-1] == f"{dataset['from'].values[top[0]]} × {dataset.to.values[top[1]]}"
    title = picture_of(small).title
    assert title == f"Why L0.H1 looks where it does: token {small.attrs['pairs']}"
