"""Rollout: equal to a slow product, its Jacobian to the dense one, and to nothing where the query cannot see."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import rheoscope as rs
from rheoscope.covers.fixed_point.analysis import layer_map
from tests.cases import double, gap, text, traced
from tests.covers.cases import bare

F64 = torch.float64


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
def test_it_equals_slow_products(name: str) -> None:
    model = double(name)
    trace = model.trace(text(n=7))
    found = rs.rollout(model, trace, token=5, probes=200)
    product, equal = torch.eye(7, dtype=F64), torch.eye(7, dtype=F64)
    uniform = torch.ones(7, 7, dtype=F64).tril() / torch.arange(1, 8)[:, None]
    for layer in range(2):
        mean = torch.stack([trace.weights(layer, head) for head in range(4)]).mean(0)
        product, equal = ((A + torch.eye(7)) / 2 @ B for A, B in ((mean, product), (uniform, equal)))
    assert gap(torch.as_tensor(found.rollout.values), product[5]) <= 1e-9

    def last(x: torch.Tensor) -> torch.Tensor:
        return layer_map(trace, 1)(layer_map(trace, 0)(x))[5]

    J = torch.autograd.functional.jacobian(last, trace.points[0], vectorize=True).square().sum((0, 2)).sqrt()
    assert np.allclose(found.jacobian, J / J.sum(), rtol=0.3, atol=1e-9)
    flow = found.jacobian.values[:5]
    assert float(found.correlation) == pytest.approx(spearmanr(product[5, :5], flow).statistic)
    assert float(found.correlation_null) == pytest.approx(spearmanr(equal[5, :5], flow).statistic)


def test_nothing_flows_from_what_cannot_be_seen() -> None:
    model = double("mistral")
    found = rs.rollout(model, traced("mistral", F64), token=10)
    assert not found.rollout.values[11:].any()
    assert not found.jacobian.values[11:].any()
    assert not found.jacobian.values[:2].any()  # two layers of a window of 5 reach back 8 tokens
    assert not found.rollout.values[:2].any()
    assert float(found.rollout.sum()) == pytest.approx(1)


@torch.no_grad()
def test_heads_that_carry_nothing_let_nothing_flow() -> None:
    """Rollout does not know F: it says that tokens flow where the derivative says that nothing does."""
    model = bare(heads=2, depth=1)
    model.view.layer_heads[0].W_O.zero_()
    found = rs.rollout(model, model.trace([3, 5, 8, 9]))
    assert found.jacobian.values.tolist() == [0, 0, 0, 1]
    assert float(found.rollout[:3].sum()) > 0.1
    assert bool(found.correlation.isnull())


def test_what_it_cannot_do_is_told_in_one_line() -> None:
    with pytest.raises(rs.RheoscopeError, match="there is no token 18; this text has tokens 0 to 17"):
        rs.rollout(double("gpt2"), traced("gpt2", F64), token=18)
    with pytest.raises(rs.RheoscopeError, match="probes must lie between 1 and 100,000, got 0; type probes=16"):
        rs.rollout(double("gpt2"), traced("gpt2", F64), probes=0)
    with pytest.raises(rs.RheoscopeError, match="it uses post-norm"):
        rs.rollout(double("bert"), traced("bert", F64))
    with pytest.raises(rs.RheoscopeError, match="this trace comes from weights"):
        rs.rollout(double("gpt2"), traced("llama", F64))
