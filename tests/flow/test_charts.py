"""Tests of charts: planes and folds, slow computations of dimensions and covers, Gaussian null, nerve."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rheoscope as rs
from rheoscope.flow.charts.analysis import (
    chart_statistics,
    gaussian_inner_products,
    greedy_cover,
    kernel,
    largest_flat_balls,
)
from rheoscope.flow.charts.nerve import kernel as nerve_kernel
from rheoscope.space.pair_distances import centred_inner_products, distances
from rheoscope.statistics.nulls import p_values
from tests.cases import double, text

F64 = torch.float64


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def plane(seed: int, n: int, p: int, width: int = 9) -> torch.Tensor:
    """Gaussian points of a p-dimensional plane."""
    axes = torch.linalg.qr(random(seed + 1, width, p)).Q
    return random(seed, n, p) @ axes.mT + random(seed + 2, width)


def statistics(x: torch.Tensor, p: int | None = None, draws: int = 0, n_neighbours: int = 6) -> dict[str, Any]:
    return kernel(x, n_neighbours, p, 0.1, draws, seed=0)


@given(st.integers(0, 99), st.integers(1, 3), st.floats(1e-3, 1e3))
@settings(max_examples=15, deadline=None)
def test_a_plane_has_angle_0_and_one_chart(seed: int, p: int, scale: float) -> None:
    result = statistics(scale * plane(seed, 24, p), p)
    assert float(result["angle"]) == pytest.approx(0, abs=1e-5)
    assert int(result["chart_count"]) == 1
    assert int(result["dimension"].max()) <= p


@given(st.integers(0, 99), st.floats(64, 1e3))
@settings(max_examples=15, deadline=None)
def test_two_planes_have_two_charts_at_any_distance(seed: int, gap: float) -> None:
    first, second = plane(seed, 16, 2), plane(seed + 50, 16, 2)
    offset = random(seed + 7, 9)
    x = torch.cat([first, second + gap * offset / offset.norm()])
    result = statistics(x)
    assert int(result["flat_dimension"]) == 2
    assert int(result["chart_count"]) == 2
    assert len({*result["chart"][:16].tolist()}) == len({*result["chart"][16:].tolist()}) == 1
    assert float(result["angle"]) == pytest.approx(0, abs=1e-5)


def test_a_fold_has_tangent_angles_only_at_its_edge() -> None:
    """Two half-planes at a right angle. Tokens far from the edge have tangent angle 0."""
    side = random(0, 60, 2).abs() * torch.tensor([4.0, 2.0], dtype=F64)
    x = torch.zeros(60, 3, dtype=F64)
    x[:30, :2], x[30:, 1:] = side[:30], side[30:].flip(-1)
    result = statistics(x, 2)
    edge = torch.cat([side[:30, 0], side[30:, 0]])
    assert float(result["tangent_angle"][edge > 3].max()) < 1e-5
    assert float(result["tangent_angle"][edge < 0.3].mean()) > 0.1


def test_rotation_shift_scale_and_repeated_points_change_nothing() -> None:
    x = random(3, 20, 5) * torch.tensor([3, 2, 1, 0.3, 0.1], dtype=F64)
    original = statistics(x, draws=3)
    rotation = torch.linalg.qr(random(4, 5, 5)).Q
    second = statistics(7 * x @ rotation + 5, draws=3)
    twice = statistics(torch.cat([x, x[:6]]), draws=3)
    for name, value in original.items():
        assert torch.allclose(value.double(), second[name].double(), atol=1e-5), name
        again = twice[name][:20] if value.ndim else twice[name]
        assert torch.allclose(value.double(), again.double(), atol=1e-5), name
    assert twice["chart"][20:].tolist() == twice["chart"][:6].tolist()
    assert int(twice["distinct_points"]) == 20


def slow_twin(x: np.ndarray, k: int, p: int, unexplained: float) -> tuple[list[int], list[float], list[float]]:
    """Local dimension, mean tangent angle and residual limit of a flat ball for every point, by SVD."""
    gap = np.linalg.norm(x[:, None] - x[None], axis=-1)
    rows = [np.argsort(row, kind="stable")[: k + 1] for row in gap]
    parts = [np.linalg.svd(x[members] - x[members].mean(0), full_matrices=False) for members in rows]
    dims = [1 + int((np.cumsum(s**2) / (s**2).sum() < 1 - unexplained).sum()) for _, s, _ in parts]
    angles = []
    for i, members in enumerate(rows):
        sines = []
        for j in members[1:]:
            cosines = np.linalg.svd(parts[i][2][:p] @ parts[j][2][:p].T, compute_uv=False)
            sines.append(math.asin(math.sqrt(max(0.0, 1 - (cosines**2).mean()))))
        angles.append(float(np.mean(sines)))
    return dims, angles, [unexplained * float((s**2).sum()) / (k + 1) for _, s, _ in parts]


def test_statistics_equal_a_slow_computation() -> None:
    x = random(5, 18, 6) * torch.tensor([3, 2, 1, 1, 0.5, 0.2], dtype=F64)
    inner = centred_inner_products(x)
    result = chart_statistics(inner, 5, 2, 0.1)
    dims, angles, limits = slow_twin(x.numpy(), 5, 2, 0.1)
    assert result["dimension"].tolist() == dims
    assert result["tangent_angle"].tolist() == pytest.approx(angles, abs=1e-6)
    order = distances(inner).argsort(dim=-1, stable=True)
    member = largest_flat_balls(inner, order, 2, torch.tensor(limits, dtype=F64))
    for i in range(18):
        inside = [
            np.linalg.svd(y - y.mean(0), compute_uv=False)[2:] for y in (x[order[i, :m]].numpy() for m in range(3, 19))
        ]
        flat = [float((s**2).sum()) / m <= limits[i] for m, s in zip(range(3, 19), inside, strict=True)]
        size = int(member[i].sum())
        assert flat[size - 3]  # the ball is flat, but not with one more point
        assert size == 18 or not flat[size - 2]
        assert set(member[i].nonzero()[:, 0].tolist()) == set(order[i, :size].tolist())


def test_cover_contains_every_point_and_no_chart_is_empty() -> None:
    member = random(6, 30, 30) > 0.8
    member |= torch.eye(30, dtype=torch.bool)
    chart = greedy_cover(member)
    sizes = chart.bincount()
    assert int(chart.min()) == 0
    assert bool((sizes > 0).all())
    assert sizes.tolist() == sorted(sizes.tolist(), reverse=True)


def test_gaussian_draws_have_the_covariance_and_are_calibrated() -> None:
    """The draws have exactly the spectrum of the cloud. A Gaussian cloud is not distinguishable from its draws."""
    inner = centred_inner_products(random(8, 12, 40))
    for sample in gaussian_inner_products(inner, 2, seed=0):
        assert torch.allclose(torch.linalg.eigvalsh(sample), torch.linalg.eigvalsh(inner), atol=1e-9)
        assert float(sample.sum(-1).abs().max()) < 1e-9
    low = 0
    for seed in range(8):
        inner = centred_inner_products(random(seed + 100, 14, 30))
        overlap = chart_statistics(inner, 4, 3, 0.1)["angle"]
        null = torch.stack(
            [chart_statistics(sample, 4, 3, 0.1)["angle"] for sample in gaussian_inner_products(inner, 19, seed)]
        )
        low += int(p_values(overlap, null) <= 0.1)
    assert low <= 4  # 1 is expected


def test_equal_heads_overlap_fully_and_random_heads_by_chance() -> None:
    scores = torch.cat(
        [random(9, 1, 40, 40), random(9, 1, 40, 40) * 2 + 1, random(10, 1, 40, 40), -random(9, 1, 40, 40)]
    )
    allowed = torch.ones(40, 40, dtype=torch.bool).tril(-1)
    overlap, null = nerve_kernel(scores, allowed, 5)
    assert float(overlap[0, 1]) == pytest.approx(1)
    assert float(overlap[0, 2]) == pytest.approx(float(null[0, 2]), abs=0.06)
    assert float(overlap[0, 3]) < float(null[0, 3]) - 0.05
    result = []
    for row in range(6, 40):
        nearest = [set(scores[head, row, :row].topk(5).indices.tolist()) for head in (0, 2)]
        result.append(len(nearest[0] & nearest[1]) / 5)
    assert float(overlap[0, 2]) == pytest.approx(float(np.mean(result)))
    assert bool(nerve_kernel(scores, allowed, 39)[0].isnan().all())


def test_every_token_is_in_a_chart_and_equal_tokens_are_one_point() -> None:
    model, ids = double("llama"), text()
    result = rs.charts(model.trace(ids), n_neighbours=4, draws=2, keep_massive=True)
    assert result.chart_count.values.tolist() == (result.chart.max("token") + 1).values.tolist()
    assert int(result.distinct_points[0]) == len(set(ids.tolist())) < len(ids) == int(result.distinct_points[-1])
    assert np.allclose(np.diagonal(result.nerve, axis1=1, axis2=2), 1)


def test_invalid_settings_raise_an_error() -> None:
    trace = double("llama").trace(text(n=6))
    with pytest.raises(
        rs.RheoscopeError,
        match=r"with \d+ distinct points, n_neighbours must lie between 1 and .* got 8; .*; type n_neighbours=",
    ):
        rs.charts(trace)
    with pytest.raises(rs.RheoscopeError, match=r"draws must be 0 \(no null\) or at least 2, got 1; type draws=20"):
        rs.charts(trace, draws=1)
    with pytest.raises(
        rs.RheoscopeError, match="dimension must lie between 1 and n_neighbours, 8, got 9; type dimension=8"
    ):
        rs.charts(trace, dimension=9)
    with pytest.raises(
        rs.RheoscopeError, match=r"unexplained_variance must lie between 0 and 1, both excluded, got 1.0"
    ):
        rs.charts(trace, unexplained_variance=1.0)
