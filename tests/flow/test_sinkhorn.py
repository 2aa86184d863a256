"""The Sinkhorn divergence: its coupling is POT's, its value the definition's, and it lies near the exact W₂²."""

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
def test_the_coupling_is_pots_and_the_value_the_definitions(seed: int) -> None:
    x, y, heat = random(seed, 20, 3), random(seed + 9, 20, 3), 1.0
    cost = squared_distances(x, y).float()
    value, plan = entropic_coupling(cost, heat)
    uniform = np.full(20, 1 / 20)
    theirs = ot.sinkhorn(uniform, uniform, cost.double().numpy(), heat, numItermax=100_000, stopThr=1e-9)
    np.testing.assert_allclose(plan.numpy(), theirs, atol=1e-3)
    told = (theirs * cost.numpy()).sum() + heat * (theirs * np.log(theirs * 400)).sum()
    assert value == pytest.approx(told, rel=1e-3)


def test_equal_clouds_are_at_0_and_every_token_is_its_own_partner() -> None:
    x = random(0, 60, 4)
    value, partner = sinkhorn_divergence(x, x)
    assert value == pytest.approx(0, abs=1e-4)
    assert partner.tolist() == list(range(60))
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    assert torch.equal(sinkhorn_divergence(x, x[order])[1], order.argsort())
    assert sinkhorn_divergence(torch.ones(5, 3), torch.ones(5, 3))[0] == 0


def test_near_the_exact_answer_on_a_real_text() -> None:
    points = select_clouds(rs.load().trace(TEXT * 3), grain="layer").points.double()
    for at, stride in ((0, 1), (2, 1), (0, 6), (1, 4)):
        x, y = points[at], points[at + stride]
        _, chance, exact, _ = transport_costs(x, y)
        value = sinkhorn_divergence(x, y)[0]
        assert value == pytest.approx(exact, rel=0.03)
        assert (chance - value) / (chance - exact) == pytest.approx(1, abs=0.1)


def test_transport_says_that_it_is_not_exact_and_by_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = rs.load().trace(TEXT)
    exact = rs.transport(trace, strides=[1], draws=2)
    assert exact.attrs["method"] == "exact"
    assert "error" not in exact.attrs
    monkeypatch.setattr(module, "MAX_EXACT_TOKENS", 12)
    monkeypatch.setattr(optimal_assignment, "MAX_EXACT_TOKENS", 12)
    near = rs.transport(trace, strides=[1], draws=2)
    assert near.attrs["method"] == "sinkhorn"
    assert abs(near.attrs["error"]) < 0.2
    assert float(abs(near.kappa - exact.kappa).max()) < 0.1
    assert float(abs(near.w2_squared / exact.w2_squared - 1).max()) < 0.05
