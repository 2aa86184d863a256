"""Tests of the flow map of clusters."""

from itertools import pairwise

import numpy as np

from rheoscope.flow.clusters.picture import UNCLUSTERED, band_outline, keep_largest, stack_clusters, track_clusters
from rheoscope.picture.picture import Shape
from tests.pictures.cases import example_picture, example_result


def test_a_cluster_keeps_its_name_while_most_of_its_tokens_stay() -> None:
    labels = np.array([[0, 0, 0, 3, 3, 5], [0, 0, 2, 2, 2, 5], [0, 1, 2, 2, 2, 2]])
    names = track_clusters(labels)
    assert names[0].tolist() == [0, 0, 0, 1, 1, UNCLUSTERED]
    assert names[1].tolist() == [0, 0, 1, 1, 1, UNCLUSTERED]
    assert names[2].tolist() == [UNCLUSTERED, UNCLUSTERED, 1, 1, 1, 1]
    assert keep_largest(names, max_clusters=1)[1].tolist() == [UNCLUSTERED, UNCLUSTERED, 1, 1, 1, UNCLUSTERED]
    split = track_clusters(np.array([[0, 0, 0, 0], [0, 0, 2, 2]]))
    assert len(set(split[1].tolist())) == 2


def test_bands_and_blocks_contain_every_token_without_overlap() -> None:
    panel, dataset = example_picture("clusters").panels[-1], example_result("clusters")
    shapes = [mark for mark in panel.marks if isinstance(mark, Shape)]
    tokens = [int(mark.tip.split(" token")[0].split()[-1]) for mark in shapes]
    bands, blocks = (
        [count for mark, count in zip(shapes, tokens, strict=True) if (len(mark.x) == 4) is block]
        for block in (False, True)
    )
    points, n = dataset.sizes["point"], dataset.sizes["token"]
    assert sum(bands) == n * (points - 1)
    assert sum(blocks) == n * points
    for index in range(points - 1):
        bands_between = [mark for mark in shapes if len(mark.x) > 4 and index < mark.x[0] < index + 1]
        for side, opposite in ((0, -1), (len(bands_between[0].x) // 2 - 1, len(bands_between[0].x) // 2)):
            spans = sorted((mark.y[side], mark.y[opposite]) for mark in bands_between)
            assert all(low[1] <= high[0] + 1e-9 for low, high in pairwise(spans))
    assert stack_clusters(np.array([UNCLUSTERED, 0, 0])) == {UNCLUSTERED: (0.0, 1.0), 0: (1.06, 3.06)}
    x, y = band_outline(0.0, 1.0, 2.0, 5.0, 3)
    assert (y[0], y[-1]) == (2, 5)
    assert (y[len(y) // 2 - 1], y[len(y) // 2]) == (5, 8)
    assert len(x) == len(y)
