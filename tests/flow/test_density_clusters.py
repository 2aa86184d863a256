"""Tests of density_clusters: planted clusters, unclustered tokens, invariances and errors."""

import sys
from dataclasses import replace

import pytest
import torch

import rheoscope as rs
from tests.flow.test_clusters import planted
from tests.pretrained.cases import random

F64 = torch.float64


def test_planted_clusters_are_detected_and_invariant() -> None:
    centres = torch.eye(3, dtype=F64)[torch.arange(36) % 3] * 10
    trace = planted(centres + 0.2 * random(0, 36, 3))
    result = rs.density_clusters(trace)
    assert result.cluster_count.values.tolist() == [3] * result.sizes["point"]
    label = result.label.values[0]
    assert all(label[i] in (label[i % 3], -1) for i in range(36))
    assert float(result.unclustered_share[0]) == pytest.approx(float((label < 0).mean()))
    Q = torch.linalg.qr(random(5, 256, 256))[0]
    transformed = rs.density_clusters(replace(trace, points=3 * trace.points @ Q + 2))
    assert transformed.label.equals(result.label)


def test_invalid_sizes_and_a_missing_library_raise_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = planted(random(0, 6, 3))
    with pytest.raises(
        rs.RheoscopeError, match=r"between 2 and the number of tokens, 6, got 9; type min_cluster_size=2"
    ):
        rs.density_clusters(trace, min_cluster_size=9)
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(
        rs.RheoscopeError, match=r"needs scikit-learn, which is not installed; type pip install 'rheoscope\[density\]'"
    ):
        rs.density_clusters(trace, min_cluster_size=2)
