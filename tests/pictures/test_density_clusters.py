"""Tests of the density_clusters plot."""

import numpy as np

import rheoscope as rs
from rheoscope.picture.picture import Line
from rheoscope.report.draw_result import picture_of
from tests.pictures.cases import TEXT, model


def test_number_of_clusters_is_drawn_with_its_null() -> None:
    dataset = rs.density_clusters(model().trace(TEXT), min_cluster_size=2)
    null, count = picture_of(dataset).panels[0].marks
    assert isinstance(null, Line)
    assert isinstance(count, Line)
    assert np.array_equal(count.y, dataset.cluster_count)
    assert np.array_equal(null.y, dataset.cluster_count_null)
