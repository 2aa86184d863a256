"""Tests of `rollout`: slow products, the dense Jacobian, invisible tokens, zero outputs and refused input."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import rheoscope as rs
from rheoscope.covers.fixed_point.analysis import layer_map
from tests.cases import double, gap, text, traced
from tests.covers.cases import random_model

F64 = torch.float64


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
def test_rollout_and_jacobian_equal_dense_products(name: str) -> None:
    model = double(name)
    trace = model.trace(text(n=7))
    result = rs.rollout(model, trace, token=5, tolerance=1e-5)
    expected, expected_uniform = torch.eye(7, dtype=F64), torch.eye(7, dtype=F64)
    uniform = torch.ones(7, 7, dtype=F64).tril() / torch.arange(1, 8)[:, None]
    for layer in range(2):
        mean = torch.stack([trace.weights(layer, head) for head in range(4)]).mean(0)
        expected = (mean + torch.eye(7)) / 2 @ expected
        expected_uniform = (uniform + torch.eye(7)) / 2 @ expected_uniform
    assert gap(torch.as_tensor(result.rollout.values), expected[5]) <= 1e-9

    def last_point(x: torch.Tensor) -> torch.Tensor:
        return layer_map(trace, 1)(layer_map(trace, 0)(x))[5]

    J = torch.autograd.functional.jacobian(last_point, trace.points[0], vectorize=True).square().sum((0, 2)).sqrt()
    assert np.allclose(result.jacobian, J / J.sum(), atol=1e-9)
    shares = result.jacobian.values[:5]
    assert float(result.correlation) == pytest.approx(spearmanr(expected[5, :5], shares).statistic)
    assert float(result.correlation_null) == pytest.approx(spearmanr(expected_uniform[5, :5], shares).statistic)


def test_invisible_tokens_have_share_0() -> None:
    model = double("mistral")
    result = rs.rollout(model, traced("mistral", F64), token=10)
    assert not result.rollout.values[11:].any()
    assert not result.jacobian.values[11:].any()
    assert not result.jacobian.values[:2].any()  # two layers of a window of 5 reach back 8 tokens
    assert not result.rollout.values[:2].any()
    assert float(result.rollout.sum()) == pytest.approx(1)


@torch.no_grad()
def test_heads_with_zero_output_have_rollout_but_no_jacobian() -> None:
    """Rollout ignores F."""
    model = random_model(heads=2, depth=1)
    model.view.layer_heads[0].W_O.zero_()
    result = rs.rollout(model, model.trace([3, 5, 8, 9]))
    assert result.jacobian.values.tolist() == [0, 0, 0, 1]
    assert float(result.rollout[:3].sum()) > 0.1
    assert bool(result.correlation.isnull())


def test_invalid_tokens_probes_and_models_are_refused() -> None:
    with pytest.raises(rs.RheoscopeError, match="there is no token 18; this text has tokens 0 to 17"):
        rs.rollout(double("gpt2"), traced("gpt2", F64), token=18)
    with pytest.raises(rs.RheoscopeError, match="probes must lie between 2 and 100,000, got 0; type probes=16"):
        rs.rollout(double("gpt2"), traced("gpt2", F64), probes=0)
    with pytest.raises(rs.RheoscopeError, match="it uses post-norm"):
        rs.rollout(double("bert"), traced("bert", F64))
    with pytest.raises(rs.RheoscopeError, match="this trace comes from weights"):
        rs.rollout(double("gpt2"), traced("llama", F64))
