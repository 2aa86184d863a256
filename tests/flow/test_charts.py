"""Charts: planes are flat and counted, a slow twin of local components and of the cover, Gaussian clouds lie at their null."""

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
from rheoscope.flow.charts.nerve import kernel as nerve_of
from rheoscope.space.pair_distances import centred_inner_products, distances
from rheoscope.statistics.nulls import p_values
from tests.cases import double, text

F64 = torch.float64


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def plane(seed: int, n: int, p: int, width: int = 9) -> torch.Tensor:
    """Points of a p-dimensional plane, evenly spread in it."""
    axes = torch.linalg.qr(random(seed + 1, width, p)).Q
    return random(seed, n, p) @ axes.mT + random(seed + 2, width)


def asked(x: torch.Tensor, p: int | None = None, draws: int = 0, nearest: int = 6) -> dict[str, Any]:
    return kernel(x, nearest, p, 0.1, draws, seed=0)


@given(st.integers(0, 99), st.integers(1, 3), st.floats(1e-3, 1e3))
@settings(max_examples=15, deadline=None)
def test_a_plane_has_angle_0_and_one_chart(seed: int, p: int, scale: float) -> None:
    found = asked(scale * plane(seed, 24, p), p)
    assert float(found["angle"]) == pytest.approx(0, abs=1e-5)
    assert int(found["chart_count"]) == 1
    assert int(found["dimension"].max()) <= p


@given(st.integers(0, 99), st.floats(64, 1e3))
@settings(max_examples=15, deadline=None)
def test_two_planes_have_two_charts_however_far_apart(seed: int, far: float) -> None:
    one, other = plane(seed, 16, 2), plane(seed + 50, 16, 2)
    away = random(seed + 7, 9)
    x = torch.cat([one, other + far * away / away.norm()])
    found = asked(x)
    assert int(found["flat_dimension"]) == 2
    assert int(found["chart_count"]) == 2
    assert len({*found["chart"][:16].tolist()}) == len({*found["chart"][16:].tolist()}) == 1
    assert float(found["angle"]) == pytest.approx(0, abs=1e-5)


def test_a_fold_has_angles_at_its_edge_alone() -> None:
    """Two half planes at a right angle: tokens far from the edge have none."""
    side = random(0, 60, 2).abs() * torch.tensor([4.0, 2.0], dtype=F64)
    x = torch.zeros(60, 3, dtype=F64)
    x[:30, :2], x[30:, 1:] = side[:30], side[30:].flip(-1)
    found = asked(x, 2)
    edge = torch.cat([side[:30, 0], side[30:, 0]])
    assert float(found["bend"][edge > 3].max()) < 1e-5
    assert float(found["bend"][edge < 0.3].mean()) > 0.1


def test_turned_shifted_scaled_and_written_twice_it_is_the_same() -> None:
    x = random(3, 20, 5) * torch.tensor([3, 2, 1, 0.3, 0.1], dtype=F64)
    plain = asked(x, draws=3)
    turn = torch.linalg.qr(random(4, 5, 5)).Q
    other = asked(7 * x @ turn + 5, draws=3)
    twice = asked(torch.cat([x, x[:6]]), draws=3)
    for name, value in plain.items():
        assert torch.allclose(value.double(), other[name].double(), atol=1e-5), name
        again = twice[name][:20] if value.ndim else twice[name]
        assert torch.allclose(value.double(), again.double(), atol=1e-5), name
    assert twice["chart"][20:].tolist() == twice["chart"][:6].tolist()
    assert int(twice["distinct"]) == 20


def slow(x: np.ndarray, k: int, p: int, off: float) -> tuple[list[int], list[float], list[float]]:
    """Local dimension, mean angle of tangent spaces, and the limit of a flat ball of every point, by singular values."""
    far = np.linalg.norm(x[:, None] - x[None], axis=-1)
    rows = [np.argsort(row, kind="stable")[: k + 1] for row in far]
    parts = [np.linalg.svd(x[at] - x[at].mean(0), full_matrices=False) for at in rows]
    dims = [1 + int((np.cumsum(s**2) / (s**2).sum() < 1 - off).sum()) for _, s, _ in parts]
    bends = []
    for i, at in enumerate(rows):
        sines = []
        for j in at[1:]:
            cosines = np.linalg.svd(parts[i][2][:p] @ parts[j][2][:p].T, compute_uv=False)
            sines.append(math.asin(math.sqrt(max(0.0, 1 - (cosines**2).mean()))))
        bends.append(float(np.mean(sines)))
    return dims, bends, [off * float((s**2).sum()) / (k + 1) for _, s, _ in parts]


def test_it_equals_a_slow_twin() -> None:
    x = random(5, 18, 6) * torch.tensor([3, 2, 1, 1, 0.5, 0.2], dtype=F64)
    inner = centred_inner_products(x)
    found = chart_statistics(inner, 5, 2, 0.1)
    dims, bends, most = slow(x.numpy(), 5, 2, 0.1)
    assert found["dimension"].tolist() == dims
    assert found["bend"].tolist() == pytest.approx(bends, abs=1e-6)
    order = distances(inner).argsort(dim=-1, stable=True)
    member = largest_flat_balls(inner, order, 2, torch.tensor(most, dtype=F64))
    for i in range(18):
        inside = [
            np.linalg.svd(y - y.mean(0), compute_uv=False)[2:] for y in (x[order[i, :m]].numpy() for m in range(3, 19))
        ]
        flat = [float((s**2).sum()) / m <= most[i] for m, s in zip(range(3, 19), inside, strict=True)]
        size = int(member[i].sum())
        assert flat[size - 3]  # the ball is flat, and one point more is not
        assert size == 18 or not flat[size - 2]
        assert set(member[i].nonzero()[:, 0].tolist()) == set(order[i, :size].tolist())


def test_the_cover_holds_every_point_and_no_chart_is_empty() -> None:
    member = random(6, 30, 30) > 0.8
    member |= torch.eye(30, dtype=torch.bool)
    chart = greedy_cover(member)
    sizes = chart.bincount()
    assert int(chart.min()) == 0
    assert bool((sizes > 0).all())
    assert sizes.tolist() == sorted(sizes.tolist(), reverse=True)


def test_gaussian_clouds_have_the_covariance_and_lie_at_their_null() -> None:
    """The spectrum of the cloud is kept exactly, and a Gaussian cloud, with more dimensions than points too, is one among its draws."""
    inner = centred_inner_products(random(8, 12, 40))
    for drawn in gaussian_inner_products(inner, 2, seed=0):
        assert torch.allclose(torch.linalg.eigvalsh(drawn), torch.linalg.eigvalsh(inner), atol=1e-9)
        assert float(drawn.sum(-1).abs().max()) < 1e-9
    low = 0
    for seed in range(12):
        inner = centred_inner_products(random(seed + 100, 14, 30))
        own = chart_statistics(inner, 4, 3, 0.1)["angle"]
        null = torch.stack(
            [chart_statistics(drawn, 4, 3, 0.1)["angle"] for drawn in gaussian_inner_products(inner, 19, seed)]
        )
        low += int(p_values(own, null) <= 0.1)
    assert low <= 5  # 1 is expected


def test_heads_that_score_alike_overlap_and_random_ones_do_so_by_chance() -> None:
    scores = torch.cat(
        [random(9, 1, 40, 40), random(9, 1, 40, 40) * 2 + 1, random(10, 1, 40, 40), -random(9, 1, 40, 40)]
    )
    usable = torch.ones(40, 40, dtype=torch.bool).tril(-1)
    own, null = nerve_of(scores, usable, 5)
    assert float(own[0, 1]) == pytest.approx(1)
    assert float(own[0, 2]) == pytest.approx(float(null[0, 2]), abs=0.06)
    assert float(own[0, 3]) < float(null[0, 3]) - 0.05
    found = []
    for row in range(6, 40):
        near = [set(scores[head, row, :row].topk(5).indices.tolist()) for head in (0, 2)]
        found.append(len(near[0] & near[1]) / 5)
    assert float(own[0, 2]) == pytest.approx(float(np.mean(found)))
    assert bool(nerve_of(scores, usable, 39)[0].isnan().all())


def test_on_a_text_every_token_is_in_a_chart_and_equal_tokens_are_one_point() -> None:
    model, ids = double("llama"), text()
    found = rs.charts(model.trace(ids), nearest=4, draws=2, keep_massive=True)
    assert found.chart_count.values.tolist() == (found.chart.max("token") + 1).values.tolist()
    assert int(found.distinct[0]) == len(set(ids.tolist())) < len(ids) == int(found.distinct[-1])
    assert np.allclose(np.diagonal(found.nerve, axis1=1, axis2=2), 1)


def test_what_it_cannot_do_is_told_in_one_line() -> None:
    trace = double("llama").trace(text(n=6))
    with pytest.raises(rs.RheoscopeError, match=r"different points, the nearest are from 1 to .*; type a longer text"):
        rs.charts(trace)
    with pytest.raises(rs.RheoscopeError, match=r"2 draws or more.*got draws=1.*; type draws=20"):
        rs.charts(trace, draws=1)
