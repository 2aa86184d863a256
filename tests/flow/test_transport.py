"""Transport: equal to scipy and POT, planted swaps found, laws of κ and W₂, nulls that are nulls."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import rheoscope as rs
from rheoscope.flow.transport import assignment, costs, in_place, kappa, moved, squared_distances
from rheoscope.space.trace import Trace
from tests.pretrained.cases import random, traced

F64 = torch.float64


def through(*clouds: torch.Tensor) -> Trace:
    """A Trace whose layers end in these clouds."""
    trace = rs.load().trace(list(range(1, len(clouds[0]) + 1)))
    wide = torch.zeros(len(trace.steps), len(clouds[0]), 256, dtype=F64)
    layers = [*trace.where, len(trace.steps) - 1]
    for at, layer in enumerate(layers):
        cloud = clouds[min(at, len(clouds) - 1)]
        wide[layer, :, : cloud.shape[-1]] = cloud
    return replace(trace, points=wide)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 30), st.integers(0, 10**6), st.sampled_from([0.0, 0.05, 1.0, 30.0]))
def test_the_assignment_equals_scipys_and_pots(n: int, seed: int, step: float) -> None:
    x = random(seed, n, 3)
    y = x + step * random(seed + 1, n, 3)
    cost = squared_distances(x, y)
    sigma = assignment(cost)
    assert sorted(sigma.tolist()) == list(range(n))
    rows, columns = linear_sum_assignment(cost.numpy())
    best = float(cost.numpy()[rows, columns].sum())
    assert float(cost[torch.arange(n), sigma].sum()) == pytest.approx(best, rel=1e-9, abs=1e-9)
    identity, _, least, _ = costs(x, y)
    uniform = np.full(n, 1 / n)
    assert least == pytest.approx(float(ot.emd2(uniform, uniform, cost.numpy())), rel=1e-6, abs=1e-9)
    assert least <= identity + 1e-12


def test_the_best_of_all_permutations() -> None:
    x, y = random(0, 6, 2), random(1, 6, 2)
    every = min(float((y[list(order)] - x).square().sum(-1).mean()) for order in permutations(range(6)))
    assert costs(x, y)[2] == pytest.approx(every)
    mean = np.mean([float((y[j] - x[i]).square().sum()) for i in range(6) for j in range(6)])
    assert costs(x, y)[1] == pytest.approx(mean)


def test_a_planted_swap_gives_the_known_coupling_and_kappa() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 5.0], [9.0, 1.0]], dtype=F64)
    y = x[[1, 0, 2, 3]]
    found = rs.transport(through(x, y), keep_massive=True)
    assert found.coupling.values[0].tolist() == [1, 0, 2, 3]
    assert float(found.w2_squared[0]) == pytest.approx(0, abs=1e-12)
    assert float(found.identity_cost[0]) == pytest.approx(0.5)
    random_cost = float(torch.cdist(x, y).square().mean())
    assert float(found.kappa[0]) == pytest.approx((random_cost - 0.5) / random_cost)
    assert float(found.identity_share[0]) == 0.5
    assert found.coupling.values[1].tolist() == [0, 1, 2, 3]
    assert float(found.kappa[1]) == 1


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_laws(name: str) -> None:
    trace = traced(name, F64)
    found = rs.transport(trace, keep_massive=True)
    assert float(found.kappa_strided.max()) <= 1 + 1e-9
    assert bool((found.w2_squared <= found.identity_cost + 1e-12).all())
    assert 0 <= float(found.geodesic_straightness) <= 1 + 1e-9
    Q = torch.linalg.qr(random(3, 32, 32))[0]
    turned = rs.transport(replace(trace, points=trace.points @ Q + 1), keep_massive=True)
    for field in found.data_vars:
        assert np.allclose(found[field], turned[field], atol=1e-7, equal_nan=True), field
    assert np.array_equal(found.kappa.values, found.kappa_strided.sel(stride=1).values)


def test_strides_reach_to_the_end_and_nowhere_beyond() -> None:
    found = rs.transport(through(*(random(at, 8, 3) for at in range(7))), keep_massive=True)
    assert found.stride.values.tolist() == [1, 2, 4, 6]
    assert int(np.isfinite(found.kappa_strided.sel(stride=4)).sum()) == 3
    assert bool(np.isnan(found.kappa_strided.sel(stride=6))[:-1].all())


def test_the_null_gives_the_same_displacements_to_other_tokens() -> None:
    """Tokens that all move alike are their own null; a cloud that is shuffled has a null near its own value."""
    x = random(0, 40, 4)
    alike = moved(x, x + 0.3, draws=3, seed=0).figures
    assert alike["kappa"] == alike["kappa_null"] == 1
    assert alike["identity_share"] == alike["identity_share_null"] == 1
    mixed = moved(x, x[torch.randperm(40, generator=torch.Generator().manual_seed(1))], draws=20, seed=0).figures
    assert abs(mixed["kappa"]) < 0.3
    assert mixed["identity_share"] < 0.3
    assert in_place(x, 2 * x + 5) == 1


def test_what_it_cannot_do_is_told_and_the_rest_is_defined() -> None:
    one = torch.ones(5, 3, dtype=F64)
    still = rs.transport(through(one, one), keep_massive=True)
    assert float(still.kappa.min()) == 1
    assert float(still.geodesic_straightness) == 1
    assert kappa(0.0, 0.0, 0.0) == 1
    with pytest.raises(rs.RheoscopeError, match="at least 2 tokens"):
        rs.transport(rs.load().trace([1]))
    with pytest.raises(rs.RheoscopeError, match=r"1 to 6, 1 among them, got 7; type strides=\[1, 6\]"):
        rs.transport(through(one, one), strides=[1, 7], keep_massive=True)
    trace = rs.load().trace([1, 2, 3])
    long = replace(
        trace, points=torch.zeros(len(trace.steps), 2049, 4), tokens=["a"] * 2049, ids=torch.zeros(2049).long()
    )
    still = rs.transport(long, keep_massive=True)  # beyond the exact limit, and every token the same
    assert still.attrs["method"] == "sinkhorn"
    assert float(still.kappa.min()) == 1
