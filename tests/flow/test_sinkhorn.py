"""Tests of the Sinkhorn divergence against POT, its definition and the exact W₂²."""

import numpy as np
import ot
import pytest
import torch

import rheoscope as rs
from rheoscope.flow.cloud import select_clouds
from rheoscope.flow.transport import analysis as module
from rheoscope.flow.transport import optimal_assignment
from rheoscope.flow.transport.optimal_assignment import squared_distances, transport_costs
from rheoscope.flow.transport.sinkhorn import entropic_coupling, sinkhorn_divergence
from tests.pretrained.cases import random

TEXT = "The river rises in the hills north of the town and flows south through the old mill district to the sea."


@pytest.mark.parametrize("seed", range(4))
def test_coupling_equals_pot_and_value_equals_the_definition(seed: int) -> None:
    x, y, epsilon = random(seed, 20, 3), random(seed + 9, 20, 3), 1.0
    cost = squared_distances(x, y).float()
    value, plan = entropic_coupling(cost, epsilon)
    uniform = np.full(20, 1 / 20)
    expected_plan = ot.sinkhorn(uniform, uniform, cost.double().numpy(), epsilon, numItermax=100_000, stopThr=1e-9)
    np.testing.assert_allclose(plan.numpy(), expected_plan, atol=1e-3)
    expected_value = (expected_plan * cost.numpy()).sum() + epsilon * (
        expected_plan * np.log(expected_plan * 400)
    ).sum()
    assert value == pytest.approx(expected_value, rel=1e-3)


def test_equal_clouds_have_divergence_0_and_the_identity_coupling() -> None:
    x = random(0, 60, 4)
    value, partner = sinkhorn_divergence(x, x)
    assert value == pytest.approx(0, abs=1e-4)
    assert partner.tolist() == list(range(60))
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    assert torch.equal(sinkhorn_divergence(x, x[order])[1], order.argsort())
    assert sinkhorn_divergence(torch.ones(5, 3), torch.ones(5, 3))[0] == 0


def test_divergence_is_close_to_the_exact_cost_on_a_real_text() -> None:
    points = select_clouds(rs.load().trace(TEXT * 3), grain="layer").points.double()
    for start, stride in ((0, 1), (2, 1), (0, 6), (1, 4)):
        x, y = points[start], points[start + stride]
        _, random_cost, exact, _ = transport_costs(x, y)
        value = sinkhorn_divergence(x, y)[0]
        assert value == pytest.approx(exact, rel=0.03)
        assert (random_cost - value) / (random_cost - exact) == pytest.approx(1, abs=0.1)


def test_transport_reports_the_method_and_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = rs.load().trace(TEXT)
    exact = rs.transport(trace, strides=[1], draws=2)
    assert exact.attrs["method"] == "exact"
    assert "error" not in exact.attrs
    monkeypatch.setattr(module, "MAX_EXACT_TOKENS", 12)
    monkeypatch.setattr(optimal_assignment, "MAX_EXACT_TOKENS", 12)
    approximate = rs.transport(trace, strides=[1], draws=2)
    assert approximate.attrs["method"] == "sinkhorn"
    assert abs(approximate.attrs["error"]) < 0.2
    assert float(abs(approximate.kappa - exact.kappa).max()) < 0.1
    assert float(abs(approximate.w2_squared / exact.w2_squared - 1).max()) < 0.05
