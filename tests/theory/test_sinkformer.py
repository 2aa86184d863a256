"""Tests of the variance equation under Sinkhorn and softmax."""

import pytest
import torch

from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.attention.score import Distance
from rheoscope.theory import sinkformer
from rheoscope.theory.sinkformer import EPSILON, spreading_velocity, variance_rate


@pytest.mark.parametrize(("name", "limit"), [("Sinkhorn", 2.0), ("softmax", 4.0)])
def test_narrow_kernels_give_the_heat_equation(name: str, limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinkformer, "EPSILON", 1e-4)
    for variance in (0.5, 2.0):
        assert float(variance_rate(name)(0.0, torch.tensor([[variance]], dtype=torch.float64))) == pytest.approx(
            limit, rel=1e-3
        )


def test_sinkhorn_coupling_of_a_gaussian_equals_the_formula() -> None:
    """Sinkhorn on a fine grid with Gaussian masses maps x to (c/σ²)x."""
    variance, y = 1.5, torch.linspace(-7, 7, 401, dtype=torch.float64)
    mass = (-y.square() / (2 * variance)).softmax(0).log()
    s, f = -(y[:, None] - y).square() / (2 * EPSILON), torch.zeros_like(y)
    for _ in range(100):
        f = -0.5 * ((s + f + mass).logsumexp(-1) - f)
    mean = (s + f + mass).softmax(-1) @ y
    slope = float(mean[250] / y[250])
    expected = float(variance_rate("Sinkhorn")(0.0, torch.tensor([[variance]], dtype=torch.float64)))
    assert 4 / EPSILON * variance * (1 - slope) == pytest.approx(expected, rel=1e-4)


def test_sinkhorn_flow_preserves_the_mean_and_softmax_does_not() -> None:
    x = torch.tensor([[-1.0], [0.1], [0.4], [0.9]], dtype=torch.float64)
    doubly_stochastic, softmax = (
        Mechanism(Distance(scale=2.0), normaliser=Sinkhorn(3000)),
        Mechanism(Distance(scale=2.0)),
    )
    assert float(spreading_velocity(doubly_stochastic)(0.0, x).mean()) == pytest.approx(0, abs=1e-8)
    assert abs(float(spreading_velocity(softmax)(0.0, x).mean())) > 1e-2
