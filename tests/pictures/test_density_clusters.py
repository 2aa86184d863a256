"""The picture of clusters by density."""

import numpy as np

import rheoscope as rs
from rheoscope.picture.picture import Line
from rheoscope.report.draw_result import picture_of
from tests.pictures.cases import TEXT, model


def test_clusters_by_density_stand_beside_their_null() -> None:
    dataset = rs.density_clusters(model().trace(TEXT), least=2)
    null, count = picture_of(dataset).panels[0].marks
    assert isinstance(null, Line)
    assert isinstance(count, Line)
    assert np.array_equal(count.y, dataset.cluster_count)
    assert np.array_equal(null.y, dataset.cluster_count_null)
