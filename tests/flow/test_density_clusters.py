"""Density clusters: planted ones are found, noise is told apart, and turns, shifts and scales change nothing."""

import sys
from dataclasses import replace

import pytest
import torch

import rheoscope as rs
from tests.flow.test_clusters import planted
from tests.pretrained.cases import random

F64 = torch.float64


def test_planted_clusters_are_found_and_the_rest_is_noise() -> None:
    centres = torch.eye(3, dtype=F64)[torch.arange(36) % 3] * 10
    trace = planted(centres + 0.2 * random(0, 36, 3))
    found = rs.density_clusters(trace)
    assert found.cluster_count.values.tolist() == [3] * found.sizes["point"]
    label = found.label.values[0]
    assert all(label[i] in (label[i % 3], -1) for i in range(36))
    assert float(found.noise[0]) == pytest.approx(float((label < 0).mean()))
    Q = torch.linalg.qr(random(5, 256, 256))[0]
    again = rs.density_clusters(replace(trace, points=3 * trace.points @ Q + 2))
    assert again.label.equals(found.label)


def test_bad_sizes_and_a_missing_library_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = planted(random(0, 6, 3))
    with pytest.raises(rs.RheoscopeError, match=r"from 2 to 6 tokens here, got least=9; type least=2"):
        rs.density_clusters(trace, least=9)
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(rs.RheoscopeError, match=r"scikit-learn's; type pip install 'rheoscope\[density\]'"):
        rs.density_clusters(trace, least=2)
