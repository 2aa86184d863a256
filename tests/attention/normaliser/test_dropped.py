"""Attention dropout: each weight is zero or scaled up, and the mean is softmax in every lowering."""

from dataclasses import replace

import pytest
import torch

import rheoscope as rs
from rheoscope.attention.normaliser.dropped import SoftmaxDropout

DOT = replace(rs.mechanism("scaled_dot"), normaliser=SoftmaxDropout(0.25))


def test_each_weight_is_dropped_or_scaled_up() -> None:
    torch.manual_seed(0)
    q = torch.randn(1, 2, 64, 8)
    softmax_weights, weights = rs.mechanism("scaled_dot").weights(q, q, "causal"), DOT.weights(q, q, "causal")
    is_allowed = softmax_weights > 0
    is_retained = (weights > 0) & is_allowed
    assert torch.allclose(weights[is_retained], softmax_weights[is_retained] / 0.75)
    assert float(weights[~is_allowed].abs().max()) == 0
    assert abs(float(is_retained.sum() / is_allowed.sum()) - 0.75) < 0.03


@pytest.mark.parametrize("lowering", ["sdpa", "reference"])
@pytest.mark.parametrize("name", ["scaled_dot", "metric"])
def test_mean_over_samples_is_softmax(lowering: str, name: str) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 12, 8, dtype=torch.float64).unbind(0)
    softmax_mechanism = rs.mechanism(name)
    dropout_mechanism = replace(softmax_mechanism, normaliser=SoftmaxDropout(0.25))
    samples = dropout_mechanism(*(x.expand(3000, -1, -1, -1) for x in (q, k, v)), mask="causal", lowering=lowering)
    assert float((samples.mean(0) - softmax_mechanism(q, k, v, mask="causal")[0]).abs().max()) < 0.12
    assert float(samples.std(0)[..., 1:, :].min()) > 0


def test_probability_zero_is_softmax() -> None:
    q = torch.randn(1, 1, 5, 4)
    assert torch.equal(replace(DOT, normaliser=SoftmaxDropout(0.0))(q, q, q), rs.mechanism("scaled_dot")(q, q, q))


def test_dropout_is_not_lowered_to_blocks() -> None:
    """Blocks recompute rows in the backward pass and would sample other weights, so they are not chosen."""
    q = torch.randn(1, 1, 300, 4)
    choice = replace(rs.mechanism("additive", dim=4), normaliser=SoftmaxDropout(0.1)).explain(q, q, q)
    assert choice.name == "reference"


def test_closed_form_gradient_and_probability_one_are_rejected() -> None:
    q = torch.randn(1, 1, 3, 4)
    with pytest.raises(rs.RheoscopeError, match="no closed-form gradient; type replace"):
        rs.attention_gradients(DOT, q, q, q, q)
    with pytest.raises(rs.RheoscopeError, match=r"must lie in \[0, 1\), got 1.0; type SoftmaxDropout\(0.1\)"):
        SoftmaxDropout(1.0)
